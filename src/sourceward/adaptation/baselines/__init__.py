"""Published test-time adaptation methods, all starting from the same trained classifier.

| method | file | trains at test time | loss |
|---|---|---|---|
| prediction-time batch norm | `batchnorm` | nothing | none |
| T3A | `t3a` | nothing; replaces the classifier's weights | none |
| Tent | `tent` | norm layers | entropy |
| SHOT-IM | `shot` | backbone | information maximisation |
| TSD | `tsd` | backbone | self-distillation from prototypes |
| TEA | `tea` | norm layers | contrastive divergence |
| MEMO | `memo` | backbone, for one sample | entropy of the mean over augmentations |
| TTT | `ttt` | backbone, for one sample | rotation prediction |
| single-sample generalization, domain-adaptive classifier | `trained_with` | nothing | none |

Methods named `*_features` are for models without a backbone: they train a map of the features instead.
"""
