"""What tests stand on: real servers on free ports, real processes, waits on conditions with deadlines."""
