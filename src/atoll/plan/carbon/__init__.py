"""Energy and carbon of a run: what it draws, what that emits by place and hour, what its machines did when made."""
