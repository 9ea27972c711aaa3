"""L2 normalization: each token, or each head's query and key, at unit length."""

from __future__ import annotations

from functools import partial

from normlens.norms.kind import NormKind
from normlens.norms.kinds.row import Coupling, KindRow
from normlens.norms.maps import Length
from normlens.norms.token import TokenNorm

MAP = Length()


ROW = KindRow(
    kind=NormKind.L2_NORM,
    title="L2 normalization (QKNorm, FixNorm, nGPT)",
    formula="y = x / s * gamma, s = max(||x||, eps)",
    source=(
        "Henry et al. 2020, Query-Key Normalization for Transformers, 2010.04245, section 3 "
        "(queries and keys); Nguyen & Salazar 2019, Transformers without Tears, 1910.05895, "
        "section on FixNorm (embeddings); Loshchilov et al. 2024, nGPT, 2410.01131, section 2"
    ),
    eps="a clamp from below on the length (torch.nn.functional.normalize)",
    couples=Coupling.TOKEN,
    annihilates="the input itself, exactly, where its length is above eps",
    remark="The learned temperature of QKNorm belongs to the attention, not to the norm.",
    norm_map=MAP,
    make=partial(TokenNorm, norm_map=MAP),
)
