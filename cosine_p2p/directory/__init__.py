"""The nodes to ask: checked, signed records from the DHT, ranked by standing, speed and distance."""
