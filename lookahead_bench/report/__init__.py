"""What people read of a finished sweep; reads the results store only."""
