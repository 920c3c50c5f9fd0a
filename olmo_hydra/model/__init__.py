"""The decoder, assembled from its config.

Shapes are written into names, one letter an axis: B batch, T query positions, S key positions, V (padded) vocabulary,
D width (of the model; of one head where a head axis stands before it), F width of the MLP, H query heads, K key-value
heads, G query heads per key-value head, P rotated pairs of a head, N tokens (B times T).
"""
