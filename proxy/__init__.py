"""The only server: the model path, the recorder and the control API."""
