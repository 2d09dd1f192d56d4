"""What travels, made on the device that has the weights: codecs and transforms of `sync`, to the same bits."""
