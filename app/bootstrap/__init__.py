"""What a process does before its work: database, seeding, engine, warm-up."""
