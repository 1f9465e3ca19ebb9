"""How a prepared archive is made: inventory, the work of one unit, and the tables at the end."""
