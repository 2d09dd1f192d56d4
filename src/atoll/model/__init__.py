"""What is trained: the compute contract, the decoder, the torch engine, Hugging Face folders, adapters."""
