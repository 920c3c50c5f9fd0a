"""The failure that the ledger and the audit are for: every host takes its share, and of that its share again."""

import numpy as np

from olmo_hydra.data.sampler import Sampler


class ShardedTwice(Sampler):
    """What HOSTS hosts read together when sampler and loader both divide the order (measured in MaxText 0.2.5).

    Of each order every host reads one of HOSTS^2 parts, so that the time of an epoch takes HOSTS orders.
    """

    HOSTS = 2

    def take(self, first, count, process=0, processes=1):
        share = self.global_batch // self.HOSTS
        in_order = self.order.length // self.HOSTS**2
        batches = []
        for n in range(first, first + count):
            parts = []
            for host in range(self.HOSTS):
                orders, at = np.divmod(np.arange(n * share, (n + 1) * share), in_order)
                read = {epoch: self.order.read(epoch + 1, 0, self.order.length) for epoch in set(orders.tolist())}
                mine = {epoch: order[host :: self.HOSTS][host :: self.HOSTS] for epoch, order in read.items()}
                parts.append([mine[epoch][i] for epoch, i in zip(orders.tolist(), at.tolist(), strict=True)])
            batches.append(np.stack(parts, axis=1).reshape(-1))
        return np.array(batches, np.uint32)[:, process::processes]
