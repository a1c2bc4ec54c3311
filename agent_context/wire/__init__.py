"""What goes over the wire and what comes back, without any I/O."""
