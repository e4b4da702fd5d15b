"""One module per wire: what to ask the engine for, what to show the client, what to keep. No sockets."""
