"""The hosts of an attempt of a run, and each host's specification for it: computed on the hosts, without a controller.

What a host gets by itself (cores, interface, paths) is planned once for each; here is what depends on the others: the
ranks' numbers, their count, and the launcher's command line."""

from typing import AbstractSet, Dict, List, NamedTuple, Sequence, Tuple

from ipexctl.protocol.run_spec import HeadSpec, RunSpec

CHANGED_ENV = "IPEXCTL_WORLD_CHANGED"  # where an attempt has not as many ranks as the first one: how many that had


class RankLayout(NamedTuple):
    """The ranks of each host of an attempt, in order; the first host is the head. ``number`` counts restarts."""

    number: int
    ranks: Dict[str, List[int]]


def choose_hosts(head: "HeadSpec", present: "AbstractSet[str]", before: "Sequence[str]" = ()) -> "List[str]":
    """Returns the hosts of the next attempt, in their order: the head, those of the attempt ``before`` that are there,
    and others, up to ``head.used``; none where too few are there."""
    first, used = next(iter(head.hosts)), head.used or len(head.hosts)
    order = sorted(head.hosts, key=lambda host: (host != first, host not in before))
    chosen = [host for host in order if host in present][:used]
    if first not in present or len(chosen) < (head.min_hosts or used):
        return []
    return [host for host in head.hosts if host in chosen]


def build_rank_layout(number: int, head: "HeadSpec", hosts: "Sequence[str]") -> "RankLayout":
    """Numbers the ranks of these hosts of a run, as many on each as were planned for it."""
    first, ranks = 0, {}
    for host in hosts:
        count = len(head.hosts[host].ranks)
        ranks[host] = list(range(first, first + count))
        first += count
    return RankLayout(number, ranks)


def place_spec(base: "RunSpec", layout: "RankLayout") -> "RunSpec":
    """Returns a host's specification for an attempt; ``base`` is that of the first one."""
    hosts, own = list(layout.ranks), layout.ranks.get(base.host, [])
    size = sum(map(len, layout.ranks.values()))
    host_rank = hosts.index(base.host) if own else 0
    values = {"host_rank": str(host_rank), "hosts": str(len(hosts)), "restart": str(layout.number)}
    values["head"] = base.leaders[hosts[0]]
    ranks = {}
    for rank, planned in zip(own, (base.ranks[before] for before in sorted(base.ranks))):
        filled = dict(planned.values)
        if filled:
            each = int(filled["ppn"]) if base.per_host else 1  # ranks for which a process stands
            numbers = {"rank": str(rank * each), "world_size": str(size * each)}
            filled.update({name: values[name] for name in ("host_rank", "hosts", "head")}, **numbers)
        ranks[rank] = planned._replace(values=filled)
    values["world_size"] = str(size)
    env = dict(base.env, **{name: values[meaning] for name, meaning in base.varying.items()})
    if size != base.size:
        env[CHANGED_ENV] = str(base.size)
    placed = base._replace(size=size, ranks=ranks, env=env, head=base.head and _place_head(base.head, layout))
    if not layout.number:
        return placed
    return placed._replace(wait=False, keep=base.keep and base.keep._replace(fresh=False))


def _place_head(head: "HeadSpec", layout: "RankLayout") -> "HeadSpec":
    counts = [(node.label, len(node.ranks)) for node in head.hosts.values()]
    hosts = {host: node._replace(ranks=layout.ranks.get(host, [])) for host, node in head.hosts.items()}
    kept = [head.hosts[host].label for host in layout.ranks]
    return head._replace(hosts=hosts, mpiexec=select_hosts(head.mpiexec, counts, kept))


def select_hosts(words: "List[str]", counts: "Sequence[Tuple[str, int]]", kept: "Sequence[str]") -> "List[str]":
    """Returns a launcher's command line for some of its hosts (label, number of ranks). It has a segment for each of
    them, between colons, or names all in one word, ``a:2,b:1``, and behind the next one says how many ranks they have.
    """
    if len(kept) == len(counts):
        return words
    together = ",".join("%s:%d" % count for count in counts)
    if together in words:
        chosen = [count for count in counts if count[0] in kept]
        at = words.index(together)
        names, ranks = ",".join("%s:%d" % count for count in chosen), str(sum(count for _, count in chosen))
        return [*words[:at], names, words[at + 1], ranks, *words[at + 3 :]]
    segments: "List[List[str]]" = [[]]
    for word in words:
        if word == ":":
            segments.append([])
        else:
            segments[-1].append(word)
    size = len(segments[-1])  # the first one stands behind the launcher's own words
    line, segments[0] = segments[0][:-size], segments[0][-size:]
    chosen_segments = [each for each in segments if any(word.partition(":")[0] in kept for word in each)]
    for number, segment in enumerate(chosen_segments):
        line += [":", *segment] if number else segment
    return line
