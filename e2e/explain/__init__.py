"""Where a step's time goes: ledger, causes, counterfactuals."""
