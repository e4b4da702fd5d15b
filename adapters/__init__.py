"""What we know about others: the wires that agents speak and the frameworks that speak them."""
