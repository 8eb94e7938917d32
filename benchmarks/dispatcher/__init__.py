"""The dispatcher: its scheduler on clusters of paper size, simulated (`simulation`), and itself under real load."""
