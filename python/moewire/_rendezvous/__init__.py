"""How ranks find one another before they share memory."""
