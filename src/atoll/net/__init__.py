"""How bytes reach a peer: the transport contract, identity, wire format, tickets, iroh."""
