"""Real agent frameworks, unmodified, through the proxy before the scripted engine."""
