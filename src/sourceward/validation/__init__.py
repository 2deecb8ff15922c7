"""Leave-one-domain-out validation over the sources: the one rule that chooses and estimates.

`folds.py` holds sources out, `leave_one_domain_out.py` chooses steps and transforms, `expected_gain.py` is
the estimate, `crossfit.py` makes folds for a backbone that is trained: one short fine-tuning per source.
"""
