"""Single kernel launches: predicted, checked and rendered."""
