"""One module per wire: what to ask the engine for, what to show the client, what to keep. Pure functions and state, no sockets."""
