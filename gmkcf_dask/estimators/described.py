"""What the docstrings of all estimators say of their common parameters and attributes."""

KERNELS = """
    kernels : str, list or "precomputed", default="paper12"
        Kernel names ("paper12", "rbf_1", "poly_a1_b2", "linear", "cosine"), specs, or callables
        f(X_I, X_J) on two row blocks. A store knows a function by its name only."""

KERNEL = """
    kernel : str, spec, callable or "precomputed", default="mean"
        One kernel by name; "mean" for the mean of the set paper12, or of all kernels of a store.
        Of several precomputed kernels the mean is taken."""

PARAMETERS = """
    normalization : {"unit", "degree", "none"}, default="unit"
        Of kernels computed from features: unit diagonal, D^-½ K D^-½, or none. Precomputed kernels
        are taken as they are; wrap one in `Precomputed` to have it normalised or scaled.
    scaling : {"minmax", "none"}, default="minmax"
        Of computed kernels: to [0, 1], or none.
    precision : {"float32", "float64", "compact"}, default="float32"
        Of kernel entries; compact is 16-bit fixed point for kernels in [0, 1].
    block_size : int or "auto", default="auto"
        Edge of the tiles kernels are cut into.
    random_state : int, RandomState or None
        Seed of the starts and of K-means.
    store : path or URL, optional
        Build the kernels here, chunked on disk or in an object store (s3://…); a store that is
        already there and fits the data is used again. They are then read tile by tile, or at once
        where all fit into this process. Without it kernels live in memory only.
    client : distributed.Client, optional
        Cluster for work on a store; the current client when there is one, else threads.
    callbacks : list of callables, optional
        Each gets every event: `IterationDone`, or `StageProgress` where restarts run together
        (`History`, `JsonLines` and `Progress` are ready-made). What one raises ends the fit.
    checkpoint_dir : path or URL, optional
        Folder for checkpoints of a running fit (GMKCF, KCF, RMKKM, kernel k-means; the spectral
        methods are short and keep none): written as often as it takes a twentieth of the time, and
        when a fit is broken off; gone when it is done. `fit(X, resume=True)` goes on from there, to
        the same bits. Needs a whole number as random_state.
    checkpoint_every : int, optional
        Iterations between two of them, instead of a share of the time.
    verbose : int, default=0
        Above 0, progress on standard error.
    text : TextOptions, optional
        How texts become features, where `fit` is given texts; TF-IDF by default."""

ATTRIBUTES = """
    labels_ : ndarray of int, shape (n_samples,)
    kernel_weights_ : ndarray, shape (n_kernels,)
    kernel_names_ : tuple of str
    objective_history_ : ndarray, shape (n_iter_ + 1,)
        Objective of the kept run, its start first.
    n_iter_ : int
    converged_ : bool
    runs_ : tuple of RunSummary
        Objective, iterations and convergence of every restart.
    weights_history_ : ndarray, shape (n_iter_ + 1, n_kernels)
        Weights of the start, then after every iteration; no rows where they are not learned.
    n_features_in_ : int
        Columns of X, where features were given; terms, where texts were.
    terms_ : tuple of str or None
        Terms of the texts, one for each feature; None where there are none.
    reading_ : TextReading or None
        How texts became features: `reading_.transform(texts, terms_)` does the same to others."""
