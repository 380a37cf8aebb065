"""What the tests share: processes, an oracle, cases. Importable in spawned processes."""
