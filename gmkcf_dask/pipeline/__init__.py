"""From input to results: what the command line and the estimators share."""
