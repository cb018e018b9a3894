"""What the job `holdem` adds to slime: how a decision is asked (`plugin`), judged (`answer`) and learnt (`train_only`).

A row of the data is one of PokerBench: `instruction` tells the hand up to the decision, `output` is the solver's
answer, for example `fold`, `call` or `raise 11.5`. slime imports the functions by name; they import slime when called.
"""
