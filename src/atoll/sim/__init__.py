"""The same peers in virtual time, on a network, disk and computer that lie as the real ones do."""
