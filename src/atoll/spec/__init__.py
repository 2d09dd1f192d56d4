"""What a run asks for: frozen records, strict TOML in, canonical bytes and a hash out."""
