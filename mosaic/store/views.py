"""Views for people with `sqlite3` or `psql`: v_trajectories, v_sessions and v_calls, with plain, decoded columns.

They are part of the public interface (docs/database.md). Times are UTC text; what was said is text where it was text
and JSON where it was more. Token ids and logprobs stay in `tokens`; `mosaic export` writes them out.
"""

from sqlalchemy import Connection, text

# JSON may hold NUL and lone surrogates, as escapes. Decoded, PostgreSQL refuses them, and in SQLite they make a text
# that ends early or is no UTF-8: such a message is shown undecoded.
_SQLITE = {
    "time": "strftime('%Y-%m-%d %H:%M:%f', {0}, 'unixepoch')",
    "hated": "({0} glob '*\\u0000*' or {0} glob '*\\u[dD][89a-fA-F]*')",
    "content": "case when {hated} then {0} when json_type({0}, '$.content') in ('text', 'null') "
    "then {0} ->> '$.content' else {0} -> '$.content' end",
    "get": "case when {hated} then null else {0} ->> '$.{1}' end",
    "part": "case when {hated} then null else nullif({0} -> '$.{1}', 'null') end",
}
_POSTGRESQL = {
    "time": "to_char(to_timestamp({0}) at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.MS')",
    "hated": "{0} ~ '\\\\u(0000|[dD][89a-fA-F])'",
    "content": "case when {hated} then {0} else {0}::json ->> 'content' end",
    "get": "case when {hated} then null else {0}::json ->> '{1}' end",
    "part": "case when {hated} then null else nullif(({0}::json -> '{1}')::text, 'null') end",
}

NAMES = ("v_calls", "v_sessions", "v_trajectories")


def create_views(connection: Connection) -> None:
    """Create the views, or put them in the place of older ones."""
    drop_views(connection)
    for statement in _statements(connection.dialect.name):
        connection.execute(text(statement.replace(":", "\\:")))


def drop_views(connection: Connection) -> None:
    """Remove the views: a migration must, before it changes what they show."""
    for name in NAMES:
        connection.execute(text(f"drop view if exists {name}"))


def _statements(dialect: str) -> list[str]:
    form = _POSTGRESQL if dialect == "postgresql" else _SQLITE

    def of(kind: str, *arguments: str) -> str:
        return form[kind].format(*arguments, hated=form["hated"].format(*arguments))

    return [
        f"""create view v_calls as
select c.call_id, c.trajectory_id, c.session_id, s.position as session, s.kind as session_kind, c.parent_call_id,
  c.seq, {of("time", "c.started_at")} as started, c.ended_at - c.started_at as seconds,
  c.first_byte_at - c.started_at as seconds_to_first_byte, c.wire, {of("get", "c.params", "model")} as model,
  c.status, c.http_status, c.error, c.auxiliary, c.rung, c.score, c.evidence, c.rivals,
  c.attribution, c.client, c.streamed, c.retry_count,
  m.depth + 1 as messages, m.role as last_role, {of("content", "m.body")} as last_content,
  {of("content", "r.body")} as reply, {of("part", "r.body", "tool_calls")} as reply_tool_calls, t.finish_reason,
  c.prompt_tokens, c.sampled_tokens, c.exact, c.inexact_reason, c.fidelity, c.fidelity_reason,
  c.policy_version, c.policy_version_end
from calls c
join sessions s on s.session_id = c.session_id
left join messages m on m.message_id = c.message_id
left join tokens t on t.call_id = c.call_id and t.choice = 0
left join messages r on r.message_id = t.message_id""",
        f"""create view v_sessions as
select s.session_id, s.trajectory_id, s.position as session, s.kind, s.parent_session_id, p.position as parent_session,
  s.opened_by_call_id, {of("time", "s.created_at")} as opened, s.ended, {of("time", "s.ended_at")} as ended_at,
  l.rung, l.score, l.evidence, l.rivals,
  (select count(*) from calls c where c.session_id = s.session_id) as calls,
  (select coalesce(sum(c.sampled_tokens), 0) from calls c where c.session_id = s.session_id) as sampled_tokens,
  (select count(c.inexact_reason) from calls c where c.session_id = s.session_id) as inexact_calls,
  (select a.value from advantages a join jobs j on j.job_id = a.job_id where a.session_id = s.session_id
    order by j.created_at desc limit 1) as advantage
from sessions s
left join sessions p on p.session_id = s.parent_session_id
left join links l on l.session_id = s.session_id""",
        f"""create view v_trajectories as
select t.trajectory_id, t.task_key, k.text as task, t.state, t.reward, t.attribution,
  {of("time", "t.created_at")} as started, {of("time", "t.updated_at")} as last_call_ended,
  t.trained_version, t.trained_job_id,
  (select count(*) from sessions s where s.trajectory_id = t.trajectory_id) as sessions,
  (select count(*) from sessions s where s.trajectory_id = t.trajectory_id and s.kind = 'compaction') as compactions,
  (select count(*) from sessions s where s.trajectory_id = t.trajectory_id and s.kind = 'spawn') as spawns,
  (select count(*) from calls c where c.trajectory_id = t.trajectory_id) as calls,
  (select count(c.inexact_reason) from calls c where c.trajectory_id = t.trajectory_id) as inexact_calls,
  (select coalesce(sum(c.sampled_tokens), 0) from calls c where c.trajectory_id = t.trajectory_id) as sampled_tokens,
  (select max(c.policy_version_end) from calls c where c.trajectory_id = t.trajectory_id) as policy_version
from trajectories t
left join tasks k on k.task_key = t.task_key""",
    ]
