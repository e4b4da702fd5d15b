"""The pages over HTTP, read by a parser: what they show, where they lead, what a hostile agent cannot do to them."""

import json
import re
import time
from pathlib import Path

import pytest

from mosaic.store import schedules
from proxy.ui.rendering import FOLDER
from tests.proxy.ui.conftest import Page, Visitor
from tests.proxy.ui.story import HOSTILE, QUESTIONS, Vocabulary, long

PAGES = ["trajectories", "t/run-1-1b", "t/run-hostile", "c/c1-run-hostile", "c/c1-run-1-1b", "groups", "training",
         "health", "health/findings", "health/certificate", "t/run-broken", "login"]  # fmt: skip


def test_from_the_list_to_a_call_every_page_leads_on(visitor: Visitor) -> None:
    page = visitor.see("trajectories")
    assert QUESTIONS[0] in page.text
    assert "/ui/t/run-1-1b" in page.links("/ui/t/")
    trajectory = visitor.see("t/run-1-1b")
    assert "compaction" in trajectory.text
    assert "by summary" in trajectory.text
    calls = trajectory.links("/ui/c/")
    assert len(set(calls)) == len(visitor.store.trajectory("run-1-1b").sessions[0].calls) + sum(
        len(s.calls) for s in visitor.store.trajectory("run-1-1b").sessions[1:]
    )
    call = visitor.see(calls[1].removeprefix("/ui/"))
    assert "sampled tokens" in call.text
    assert "first call of its trajectory" in visitor.see("c/c1-run-1-1b").text
    assert call.links("/ui/t/run-1-1b")


@pytest.mark.parametrize(
    ("query", "shown", "hidden"),
    [
        ("q=RUN-2-3", "run-2-3a", "run-1-3a"),
        ("q=lighthouses", "run-1-5a", "run-1-1a"),
        ("state=trained", "run-1-1a", "run-2-1a"),
        ("state=open", "run-broken", "run-1-1a"),
        ("outcome=unscored", "run-hostile", "run-1-1a"),
    ],
)
def test_filters_show_what_fits_and_nothing_else(visitor: Visitor, query: str, shown: str, hidden: str) -> None:
    ids = [link.removeprefix("/ui/t/") for link in visitor.see(f"trajectories?{query}").links("/ui/t/")]
    assert shown in ids
    assert hidden not in ids


@pytest.mark.parametrize("path", ["/ui", "/ui/"])
def test_the_dashboards_address_leads_to_the_list_with_and_without_a_slash(visitor: Visitor, path: str) -> None:
    answer = visitor.client.get(path, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/trajectories")


def test_an_id_of_a_call_finds_its_trajectory(visitor: Visitor) -> None:
    assert "opens trajectory run-1-2c" in visitor.see("trajectories?q=c2-run-1-2c").text


def test_htmx_gets_the_part_that_it_wants_and_a_restored_page_is_whole(visitor: Visitor) -> None:
    part = visitor.client.get("/ui/trajectories?state=scored", headers={"hx-request": "true"}).text
    assert "<html" not in part
    restored = {"hx-request": "true", "hx-history-restore-request": "true"}
    assert "<html" in visitor.client.get("/ui/trajectories", headers=restored).text


@pytest.mark.parametrize("path", PAGES)
def test_nothing_that_an_agent_says_becomes_part_of_a_page(visitor: Visitor, path: str) -> None:
    html = visitor.client.get(f"/ui/{path}").text
    page = Page(html)
    assert "onerror=alert" not in re.sub(r"&lt;.*?&gt;", "", html)
    assert "{{ 7*7 }}" in page.text or "49" not in page.text or "hostile" not in path
    for tag, attributes in page.elements:
        assert tag != "img"
        assert tag != "script" or str(attributes.get("src", "")).startswith("/ui/static/"), path
        assert not any(name.startswith("on") or name == "style" for name in attributes), (path, tag, attributes)
        assert not str(attributes.get("href", "")).lower().startswith(("javascript:", "http"))


def test_what_a_hostile_agent_said_is_read_as_it_was_said(visitor: Visitor) -> None:
    assert HOSTILE in visitor.see("t/run-hostile").text
    assert visitor.see("c/c1-run-hostile").text.count(HOSTILE) >= 2
    assert HOSTILE in visitor.see("groups").text


def test_a_reward_is_given_and_corrected_by_hand(visitor: Visitor) -> None:
    token = visitor.token()
    given = visitor.client.post("/ui/t/run-2-5d/reward", data={"reward": "0.25", "note": "<b>ok</b>"}, headers=token)
    assert "Given." in Page(given.text).text
    assert "<b>ok</b>" in Page(given.text).text
    assert visitor.store.trajectory("run-2-5d").reward == 0.25
    visitor.client.post("/ui/t/run-2-5d/reward", data={"reward": "1"}, headers=token)
    assert visitor.store.trajectory("run-2-5d").reward == 1.0
    refused = visitor.client.post("/ui/t/run-2-5d/reward", data={"reward": "much"}, headers=token)
    assert "'much' is no number" in Page(refused.text).text
    infinite = visitor.client.post("/ui/t/run-2-5d/reward", data={"reward": "inf"}, headers=token)
    assert infinite.status_code == 200
    assert visitor.store.trajectory("run-2-5d").reward == 1.0
    unscorable = visitor.client.post("/ui/t/run-2-5d/reward", data={"unscorable": "1"}, headers=token)
    assert "unscorable" in Page(unscorable.text).text
    assert visitor.store.trajectory("run-2-5d").reward is None


def test_a_session_can_be_judged_by_itself(visitor: Visitor) -> None:
    session = visitor.store.trajectory("run-2-4b").sessions[1].session_id
    before = visitor.store.trajectory("run-2-4b").reward
    visitor.client.post("/ui/t/run-2-4b/reward", data={"reward": "0.5", "session": session}, headers=visitor.token())
    assert visitor.store.trajectory("run-2-4b").reward == before
    assert "reward 0.5" in visitor.see("t/run-2-4b").text


def test_a_group_shows_each_rules_advantages_side_by_side(visitor: Visitor) -> None:
    link = next(iter(visitor.see("t/run-1-1b").links("/ui/group?")))
    page = visitor.see(link.removeprefix("/ui/"))
    for rule in ("grpo", "dr_grpo", "rloo", "reinforce_pp", "mosaic"):
        assert rule in page.text
    assert "sessions under mosaic" in page.text
    assert "run-2-1a" not in page.text
    everything = next(link for link in page.links("/ui/group?") if "version=" not in link)
    assert "run-2-1a" in visitor.see(everything.removeprefix("/ui/")).text
    assert "run-1-1d" in page.text


def test_groups_are_named_by_the_key_of_their_task(visitor: Visitor) -> None:
    key = "astropy__astropy-12907 <b>"
    named = visitor.client.put("/api/trajectories/run-2-5d/task", json={"task": key, "text": "Mend the model."})
    assert named.json()["task_key"] == key
    groups = visitor.see("groups")
    assert groups.text.count(key) == 1
    assert "Mend the model." in groups.text
    group = visitor.see(next(link for link in groups.links("/ui/group?") if "astropy" in link).removeprefix("/ui/"))
    assert (group.text.count(key), group.text.count("Mend the model.")) == (1, 1)


def test_jobs_have_the_figures_of_the_command_and_those_of_another_release_are_left_out(visitor: Visitor) -> None:
    older = visitor.store.start_job({})
    visitor.store.end_job(older, metrics={"groups": 41, "trajectories": 42, "tokens": 43, "seconds": 44})
    page = visitor.see("training")
    for name in ("Groups trained", "Trajectories trained", "Tokens trained", "Training", "Swap pause", "Whole job"):
        assert name in page.text
    assert re.search(rf"{older} published v\d+( –){{7}} ", page.text)


def test_one_version_is_live_and_a_skipped_job_is_shown_calmly(visitor: Visitor) -> None:
    visitor.store.version_live(visitor.store.new_version("/newer", None))
    visitor.store.skip_job(visitor.store.start_job({}), "nothing to learn from here")
    page = visitor.client.get("/ui/training").text
    assert re.findall(r'version-[a-z-]+"></i>([a-z ]+)<', page) == ["live", "was live"]
    assert re.search('class="muted">nothing to learn from here', page)


def test_training_draws_what_was_measured(visitor: Visitor) -> None:
    page = visitor.see("training")
    assert "Reward and success" in page.text
    drawn = visitor.client.get("/ui/training.json").json()
    assert [version for _, version in drawn["markers"]] == [1, 2]
    assert all(len({len(column) for column in plot["columns"]}) == 1 for plot in drawn["plots"])


def test_a_run_is_asked_for_where_a_schedule_takes_it_and_only_by_a_page_of_ours(visitor: Visitor) -> None:
    assert "No schedule runs" in visitor.see("training").text
    refused = visitor.client.post("/ui/schedule/run", headers=visitor.token())
    assert refused.status_code == 409
    visitor.store.take_lease(schedules.LEASE, "a process", 60.0)
    with visitor.store.database.writing() as connection:
        schedules.change(connection, next_at=86400.0, due="cron", held_up="hours")
    page = visitor.see("training")
    assert "next run 1970-01-02 00:00:00 UTC" in page.text
    assert "A run is due (cron) and waits for the hours that are set." in page.text
    assert visitor.client.post("/ui/schedule/run").status_code == 403
    with visitor.store.database.reading() as connection:
        assert schedules.read(connection).asked_at is None
    answer = visitor.client.post("/ui/schedule/run", headers=visitor.token())
    assert "A run is asked for" in answer.text
    told = visitor.client.get("/api/schedule").json()
    assert (told["owner"], told["asked_at"]) == ("a process", pytest.approx(time.time(), abs=60))
    visitor.store.give_lease(schedules.LEASE, "a process")
    with visitor.store.database.writing() as connection:
        schedules.answered(connection, time.time())


def test_tokens_come_with_their_logprobs_versions_and_advantage_and_without_an_engine_as_ids(visitor: Visitor) -> None:
    drawn = visitor.client.get("/ui/c/c1-run-1-1b/tokens.json").json()
    call = visitor.store.trajectory("run-1-1b").sessions[0].calls[0]
    assert drawn["ids"] == call.samples[0].ids_T.tolist()
    assert drawn["logprobs"] == pytest.approx(call.samples[0].logprobs_T.tolist())
    assert drawn["prompt"] == call.prompt_ids_P.tolist()[-96:]
    assert drawn["training_logprobs"] == pytest.approx([value - 0.01 for value in drawn["logprobs"]], abs=1e-5)
    untrained = visitor.client.get("/ui/c/c1-run-hostile/tokens.json").json()
    assert untrained["training_logprobs"] is None
    assert visitor.client.get("/api/calls/c1-run-1-1b/tokens").json()["training_logprobs"] == drawn["training_logprobs"]
    assert (drawn["trained"], set(drawn["versions"]), drawn["texts"]) == (True, {0}, {})
    assert drawn["advantage"] is not None
    aborted = visitor.client.get("/ui/c/c1-run-broken/tokens.json").json()
    assert aborted["trained"] is False


def test_a_request_can_be_copied_whole(visitor: Visitor) -> None:
    asked = json.loads(visitor.client.get("/ui/c/c3-run-1-1b/request.txt").text)
    call = next(c for s in visitor.store.trajectory("run-1-1b").sessions for c in s.calls if c.call_id == "c3-run-1-1b")
    assert asked["messages"] == [dict(m) for m in call.messages]
    command = visitor.client.get("/ui/c/c3-run-1-1b/curl.txt").text
    assert command.startswith("curl http://127.0.0.1/t/run-1-1b/v1/chat/completions")
    assert json.loads(visitor.client.get("/ui/c/c3-run-1-1b/response.txt").text)[0]["finish_reason"]


def test_a_long_trajectory_opens_with_its_first_lines_and_brings_the_others_when_they_are_wanted(
    visitor: Visitor,
) -> None:
    visitor.store.record(long(Vocabulary(), "run-long", 130, 3e9))
    page = visitor.see("t/run-long")
    lines = [a for tag, a in page.elements if "data-row" in a]
    assert len(lines) == 100
    more = next(
        str(a["hx-get"]) for tag, a in page.elements if str(a.get("hx-get", "")).startswith("/ui/t/run-long/calls")
    )
    rest = Page(visitor.client.get(more).text)
    assert len([a for tag, a in rest.elements if "data-row" in a]) == 30
    last = visitor.see("c/c130-run-long")
    assert "Shelf 128" in last.text
    assert "Shelf 12 " not in last.text
    earlier = next(
        str(a["hx-get"]) for _, a in last.elements if str(a.get("hx-get", "")).endswith(tuple("0123456789abcdef"))
    )
    assert "Shelf 127" in Page(visitor.client.get(earlier).text).text


@pytest.mark.parametrize(
    "path", ["t/nothing", "c/nothing", "group?task=nothing", "nothing", "c/c1-run-1-1b/tokens.json?choice=7"]
)
def test_what_is_not_there_is_said_on_a_page_to_a_person_and_as_json_to_a_program(visitor: Visitor, path: str) -> None:
    page = visitor.client.get(f"/ui/{path}", headers={"accept": "text/html"})
    assert page.status_code == 404
    assert "<html" in page.text
    assert set(visitor.client.get(f"/ui/{path}").json()["error"]) == {"message", "type"}


def test_files_are_served_and_nothing_beside_them(visitor: Visitor) -> None:
    for file in (FOLDER / "static").rglob("*"):
        if file.is_file():
            answer = visitor.client.get(f"/ui/static/{file.relative_to(FOLDER / 'static')}")
            assert answer.content == file.read_bytes()
    for path in (
        "../pages.py",
        "%2e%2e/pages.py",
        "vendor/../../pages.py",
        "vendor",
        "",
        "nothing.js",
        "..%2fpages.py",
    ):
        assert visitor.client.get(f"/ui/static/{path}").status_code in (303, 404)


def test_every_vendored_file_has_its_licence() -> None:
    names = {
        p.name.split(".")[0].removesuffix("-latin-wght-normal").lower() for p in (FOLDER / "static/vendor").iterdir()
    }
    licences = {p.stem.lower() for p in (FOLDER / "static/vendor").glob("*.LICENSE")}
    assert names == licences


def test_our_own_files_name_no_other_host() -> None:
    for file in [*(FOLDER / "static").glob("*.*"), *(FOLDER / "templates").iterdir()]:
        found = re.findall(r"https?://[^\s\"'<)]+", Path(file).read_text())
        assert set(found) <= {"http://www.w3.org/2000/svg"}, file
