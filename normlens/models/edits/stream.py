"""Who writes to the residual stream and who reads it; the ground of every change of basis."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from normlens.errors import NotApplicable
from normlens.models.edits.linears import embedding_table
from normlens.models.families import Family, family_of
from normlens.models.lens import Lens, NormSite, Role
from normlens.norms import NormKind

READERS = (Role.PRE_ATTN, Role.PRE_MLP, Role.FINAL)
ON_BRANCHES = (Role.POST_ATTN, Role.POST_MLP)


@dataclass(frozen=True)
class Stream:
    """The residual stream of a pre-norm model, by module path.

    Attributes:
        embeddings: tables whose rows add up to the stream before the first block.
        writers: linears whose outputs are added to it, directly or through a branch norm.
        readers: norms that read it; all other modules read it through these.
        branch_norms: norms between a writer and the stream.
    """

    embeddings: tuple[str, ...]
    writers: tuple[str, ...]
    readers: tuple[NormSite, ...]
    branch_norms: tuple[NormSite, ...]


def stream_of(lens: Lens, gone: Collection[NormSite] = ()) -> Stream:
    """Find writers and readers.

    Args:
        lens: any.
        gone: norms on the embeddings that the edit folds into them.

    Raises:
        NotApplicable: a norm stands on the stream, something reads the stream without a
            norm, or the embeddings are projected before they enter it.
    """
    name, family = lens.identity.name, family_of(lens.model)
    for site in lens.sites:
        if site.on_stream and site.spec.kind is not NormKind.IDENTITY and site not in gone:
            foldable = site.role is Role.EMBED and len(family.embeddings) == 1
            raise NotApplicable(
                f"norm {site.label} of {name} stands on the residual stream, so its gain acts on "
                f"the stream itself{'; fold it into the embeddings first' if foldable else ''}"
            )
    readers = tuple(s for s in lens.sites if s.role in READERS and not s.on_stream)
    _require_readers(lens, family, readers)
    for path in family.embeddings:
        table = embedding_table(lens.model.get_submodule(path), path)
        if table.shape[1] != readers[-1].spec.width:
            raise NotApplicable(
                f"{path} of {name} is {table.shape[1]} wide and the residual stream "
                f"{readers[-1].spec.width}: it is projected before it enters the stream"
            )
    return Stream(
        family.embeddings,
        tuple(_writers(lens, family)),
        readers,
        tuple(s for s in lens.sites if s.role in ON_BRANCHES and not s.on_stream),
    )


def _writers(lens: Lens, family: Family) -> Iterator[str]:
    for prefix in _blocks(lens, family):
        yield prefix + family.attention_out
        yield prefix + family.mlp_out


def _blocks(lens: Lens, family: Family) -> Iterator[str]:
    for layer, _ in enumerate(lens.model.get_submodule(family.blocks).children()):
        yield f"{family.blocks}.{layer}."


def _require_readers(lens: Lens, family: Family, readers: tuple[NormSite, ...]) -> None:
    name = lens.identity.name
    fed = {path for site in readers for path in site.feeds}
    if family.unembedding is None or family.unembedding not in fed:
        raise NotApplicable(f"{name} has no norm between the residual stream and its logits")
    for layer, prefix in enumerate(_blocks(lens, family)):
        qkv = {prefix + path for path in family.qkv}
        here = {path for path in fed if path.startswith(prefix)}
        if not qkv <= here or not here - qkv:
            what = "MLP" if qkv <= here else "attention"
            raise NotApplicable(
                f"the {what} of layer {layer} of {name} reads the residual stream itself and not "
                "the output of a norm"
            )
