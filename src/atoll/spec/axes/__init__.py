"""The axes of a recipe, a file each: every choice is a record, and a choice that is not built does not exist."""
