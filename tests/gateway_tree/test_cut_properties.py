"""What must hold for any session whatever: checked on generated trees of turns, minimality against brute force."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from rollway_gateway.tree import cut
from rollway_wire.tokens import NO_VERSION, Turn
from tests.gateway_tree.sessions import extends, turn


@st.composite
def session_trees(draw: st.DrawFn, max_turns: int = 12) -> list[Turn]:
    """Turns whose prompts extend, repeat, cut short or change what came before; tokens from a tiny alphabet collide."""
    token = st.integers(0, 2)
    turns: list[Turn] = []
    for i in range(draw(st.integers(1, max_turns))):
        prompt = draw(st.lists(token, max_size=3))
        if turns:
            base = draw(st.sampled_from(turns))
            kind = draw(st.sampled_from(["extend", "extend", "extend", "same prompt", "part", "fresh"]))
            whole = [*base.prompt_token_ids, *base.completion_token_ids]
            if kind == "extend":
                prompt = whole + prompt
            elif kind == "same prompt":
                prompt = list(base.prompt_token_ids)
            elif kind == "part":
                prompt = whole[: draw(st.integers(0, len(whole)))] + prompt
        completion = draw(st.lists(token, min_size=1, max_size=4))
        incomplete = draw(st.sampled_from([None, None, None, None, "no log-probs"]))
        turns.append(turn(i, prompt or [0], completion, incomplete=incomplete, version=draw(st.integers(0, 3))))
    return draw(st.permutations(turns))


def fewest_chains(turns: list[Turn]) -> int:
    """Brute force: turns less a maximum matching of turns with later ones (augmenting paths)."""
    taken: dict[int, int] = {}

    def augment(a: int, seen: set[int]) -> bool:
        for b in range(len(turns)):
            if b not in seen and extends(turns[b], turns[a]):
                seen.add(b)
                if b not in taken or augment(taken[b], seen):
                    taken[b] = a
                    return True
        return False

    return len(turns) - sum(augment(a, set()) for a in range(len(turns)))


@settings(max_examples=400, deadline=None)
@given(session_trees())
def test_each_sampled_token_of_a_complete_turn_is_trained_in_exactly_one_sequence(turns: list[Turn]) -> None:
    by_id = {t.turn_id: t for t in turns}
    trajectory = cut("s", turns)
    trained = [turn_id for s in trajectory.sequences for turn_id in s.turn_ids]
    assert sorted(trained) == sorted(t.turn_id for t in turns if t.incomplete is None)
    for s in trajectory.sequences:
        masked = 0
        for turn_id in s.turn_ids:
            t = by_id[turn_id]
            start, end = len(t.prompt_token_ids), len(t.prompt_token_ids) + len(t.completion_token_ids)
            assert s.token_ids[:start] == t.prompt_token_ids, "its own prompt is its context, verbatim"
            assert s.token_ids[start:end] == t.completion_token_ids
            assert s.loss_mask[start:end] == array("B", [1] * (end - start))
            assert s.logprobs[start:end] == t.logprobs
            assert set(s.policy_versions[start:end]) == {t.policy_version_start}
            masked += end - start
        assert sum(s.loss_mask) == masked, "nothing else is trained"
        rest = [i for i, m in enumerate(s.loss_mask) if not m]
        assert all(s.logprobs[i] == 0.0 and s.policy_versions[i] == NO_VERSION for i in rest)


@settings(max_examples=400, deadline=None)
@given(session_trees())
def test_there_are_as_few_sequences_as_any_assignment_allows(turns: list[Turn]) -> None:
    complete = [t for t in turns if t.incomplete is None]
    assert len(cut("s", turns).sequences) == fewest_chains(complete)


@settings(max_examples=200, deadline=None)
@given(session_trees(), st.integers(0, 50))
def test_the_ledger_accounts_for_every_sampled_token(turns: list[Turn], lost: int) -> None:
    ledger = cut("s", turns, lost_tokens=lost).ledger
    spoiled = sum(len(t.completion_token_ids) for t in turns if t.incomplete)
    assert ledger.sampled == sum(len(t.completion_token_ids) for t in turns) + lost
    assert ledger.lost == spoiled + lost
    assert ledger.trained == ledger.sampled - ledger.lost


@settings(max_examples=200, deadline=None)
@given(session_trees(), st.randoms(use_true_random=False))
def test_the_cut_does_not_depend_on_the_order_turns_are_given_in(turns: list[Turn], random) -> None:
    shuffled = list(turns)
    random.shuffle(shuffled)
    assert cut("s", turns) == cut("s", shuffled)


@settings(max_examples=200, deadline=None)
@given(session_trees())
def test_sequences_are_ordered_by_the_end_of_their_last_trained_turn(turns: list[Turn]) -> None:
    by_id = {t.turn_id: t for t in turns}
    ends = [by_id[s.turn_ids[-1]].ended_at for s in cut("s", turns).sequences]
    assert ends == sorted(ends)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(0, 5), min_size=1, max_size=4)),
                min_size=1, max_size=10))  # fmt: skip
def test_a_linear_session_is_one_sequence_without_drift(steps: list[tuple[list[int], list[int]]]) -> None:
    history, turns = [7], []
    for i, (messages, completion) in enumerate(steps):
        history = history + messages
        turns.append(turn(i, history, completion))
        history = history + completion
    trajectory = cut("s", turns)
    assert [list(s.token_ids) for s in trajectory.sequences] == [history]
    assert trajectory.metadata["drift"] == 0
