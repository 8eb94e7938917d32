"""A request finds the last answer that was sampled for its history, and pays only for what is new."""

from __future__ import annotations

import gc
import json
from array import array

import pytest

from rollway_gateway.tree import messages as module
from rollway_gateway.tree.messages import ExactTurn, MessageTree, Parent
from rollway_wire.problems import ContractViolation


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


def ids(*values):
    return array("i", values)


def add(tree: MessageTree, asked: list, said: dict, name: str, *, tools=None, kwargs=None) -> ExactTurn:
    parent = tree.find_parent(asked, tools, kwargs)
    turn = ExactTurn(name, parent.turn, ids(1), ids(2, 3), said)
    tree.add(parent, said, turn)
    return turn


def test_a_new_session_has_no_parent() -> None:
    parent = MessageTree().find_parent([user("a")])
    assert (parent.turn, parent.known, list(parent.new_messages)) == (None, 0, [user("a")])


def test_the_longest_known_history_is_found_and_the_rest_is_new() -> None:
    tree = MessageTree()
    first = add(tree, [user("a")], answer("b"), "t0")
    second = add(tree, [user("a"), answer("b"), user("c")], answer("d"), "t1")
    assert second.extends is first
    parent = tree.find_parent([user("a"), answer("b"), user("c"), answer("d"), user("e")])
    assert parent.turn is second and parent.known == 4 and list(parent.new_messages) == [user("e")]


def test_an_edited_answer_goes_on_from_the_last_one_that_was_sampled() -> None:
    tree = MessageTree()
    first = add(tree, [user("a")], answer("b"), "t0")
    add(tree, [user("a"), answer("b"), user("c")], answer("d"), "t1")
    parent = tree.find_parent([user("a"), answer("b"), user("c"), answer("edited"), user("e")])
    assert parent.turn is first and list(parent.new_messages) == [user("c"), answer("edited"), user("e")]


def test_sub_agents_and_compaction_do_not_disturb_the_main_line() -> None:
    tree = MessageTree()
    main = add(tree, [user("a")], answer("b"), "t0")
    add(tree, [user("sub")], answer("x"), "t1")
    assert tree.find_parent([user("a"), answer("b"), user("c")]).turn is main
    assert tree.find_parent([user("summary of a, b")]).turn is None


def test_parallel_calls_from_one_history_have_the_same_parent_and_do_not_see_each_other() -> None:
    tree = MessageTree()
    root = add(tree, [user("a")], answer("b"), "t0")
    left, right = (tree.find_parent([user("a"), answer("b"), user(x)]) for x in "lr")
    for parent, name in ((left, "l"), (right, "r")):
        tree.add(parent, answer(f"to {name}"), ExactTurn(name, parent.turn, ids(1), ids(2), answer(f"to {name}")))
    for name in "lr":
        found = tree.find_parent([user("a"), answer("b"), user(name), answer(f"to {name}"), user("on")])
        assert found.turn is not None and found.turn.turn_id == name and found.turn.extends is root


def test_other_tools_or_template_arguments_are_another_conversation() -> None:
    tree = MessageTree()
    tools = [{"type": "function", "function": {"name": "f"}}]
    turn = add(tree, [user("a")], answer("b"), "t0", tools=tools)
    asked = [user("a"), answer("b"), user("c")]
    assert tree.find_parent(asked, tools).turn is turn
    assert tree.find_parent(asked).turn is None
    assert tree.find_parent(asked, tools, {"enable_thinking": False}).turn is None


def test_of_two_samplings_in_the_same_words_the_later_is_gone_on_from() -> None:
    tree = MessageTree()
    add(tree, [user("a")], answer("b"), "t0")
    second = add(tree, [user("a")], answer("b"), "t1")
    assert tree.find_parent([user("a"), answer("b"), user("c")]).turn is second


def test_ids_are_kept_once_and_put_together_from_suffixes() -> None:
    first = ExactTurn("t0", None, ids(1, 2), ids(3), answer("b"))
    second = ExactTurn("t1", first, ids(4), ids(5, 6), answer("d"))
    assert second.ids() == ids(1, 2, 3, 4, 5, 6) and second.end == 6


def test_reasoning_counts_for_all_that_extends_it() -> None:
    first = ExactTurn("t0", None, ids(1), ids(2), answer("b", reasoning="so"))
    assert ExactTurn("t1", first, ids(1), ids(2), answer("d")).reasoning == "field"


def test_an_answer_that_is_not_the_assistants_is_refused() -> None:
    tree = MessageTree()
    parent: Parent = tree.find_parent([user("a")])
    with pytest.raises(ContractViolation, match="role assistant"):
        tree.add(parent, user("b"), ExactTurn("t0", None, ids(1), ids(2), user("b")))


def test_each_turn_hashes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 turns: hashing all of the history at each would be 40,000 digests."""
    tree, asked, counted = MessageTree(), [user("start")], 0
    plain = module.digest

    def counting(*args):
        nonlocal counted
        counted += 1
        return plain(*args)

    monkeypatch.setattr(module, "digest", counting)
    for i in range(200):
        said = answer(f"answer {i}", reasoning="dropped by the agent")
        add(tree, list(asked), said, f"t{i}")
        asked += [answer(f"answer {i}"), user(f"question {i}")]
    assert counted <= 200 * 4


def test_a_prompt_of_ids_is_the_turns_before_and_what_follows_as_ids_and_as_text() -> None:
    first = ExactTurn("t0", None, array("i", range(20_000)), ids(3), answer("b"))
    second = ExactTurn("t1", first, ids(4), ids(5, 6), answer("d"))
    assert (first.unwritten, second.unwritten) == (20_001, 20_004)
    for added in (ids(7, 8), ids(9)):
        found, text = second.prompt(added)
        assert found == second.ids() + added == array("i", json.loads(text))
        assert text == json.dumps(found.tolist(), separators=(",", ":")).encode()
    third = ExactTurn("t2", second, ids(10), ids(), answer("f"))
    assert (second.unwritten, third.unwritten) == (0, 1)
    assert json.loads(third.prompt(ids(1))[1]) == [*range(20_000), 3, 4, 5, 6, 10, 1]


def test_no_text_of_a_conversation_is_kept() -> None:
    tree = MessageTree()
    turn = add(tree, [user("a" * 100_000)], answer("b"), "t0")
    assert tree.find_parent([user("a" * 100_000), answer("b"), user("c")]).turn is turn
    held, seen = [tree], set()
    while held:
        value = held.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        assert not isinstance(value, str | bytes) or len(value) < 1000
        held += gc.get_referents(value) if not isinstance(value, type) else []
