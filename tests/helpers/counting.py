"""Graphs and products that are counted."""

N, M, K, BLOCK = 60, 3, 2, 20


class Counter:
    """An operator that counts sweeps: over all kernels at once, and over fused ones."""

    def __init__(self, stack):
        self._stack = stack
        self.each, self.fused, self.products = [], 0, []

    def __getattr__(self, name):
        return getattr(self._stack, name)

    def matmul_each(self, Zs, *, split=False):
        self.each.append([Z.shape[1] for Z in Zs] if isinstance(Zs, list) else Zs.shape[1])
        return self._stack.matmul_each(Zs, split=split)

    def fuse(self, weights, *, keep=True):
        self.fused += 1
        return CountedKernel(self._stack.fuse(weights, keep=keep), self)

    def single(self, i):
        return CountedKernel(self._stack.single(i), self)


class CountedKernel:
    def __init__(self, kernel, counter):
        self._kernel, self._counter = kernel, counter

    def __getattr__(self, name):
        return getattr(self._kernel, name)

    def matmul(self, Z):
        self._counter.products.append(Z.shape[1])
        return self._kernel.matmul(Z)
