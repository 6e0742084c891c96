--[[ schedule_entries: reads and writes the entries of `schedules`.

NAME has the line of a schedule and, after a line break, its rule as JSON, which Lua does not read. NAME|job has its
job, packed as `enqueue` takes one: a kind, a lane (empty: none), a digest (with the job's name, if it is unique) and
the job's JSON, a line each.

    on v=4 next=1795312800000 due=1795312800000 last=1795226400000 from=code seen=1795300000000 was=1f3c09aa,90ab11fe

The first word is the state: `on`; `paused` by an operator; `undeclared`, if no worker's code has declared it for
UNDECLARED_MS; or `removed` by an operator, if code may still declare the schedule but must not bring it back. Only a
schedule that is on has a member in `ticks`.

`v` counts the changes of the schedule. `next` is its next instant; `due` is the time at which that instant is due,
later by the schedule's part of `spread`. `last` is the last instant that was fired or missed; 0 before the first.
`from` is the origin of the rule: `code`; `live` (an operator set it); or `released` (an operator gave the schedule back
to code, and the rule holds until a worker declares another one). `seen` is the time at which code declared the schedule
last; 0: never. `was` has digests of the definitions that code declared before, oldest first; if the rule is live, the
last digest is that of the definition that code declares now.
]]

local UNDECLARED_MS = 10800000   -- three hours: workers declare the schedules of their code when they start, and hourly
local WAS_MAX = 20               -- maximum number of digests in `was`

--- Parse an entry; nil without one, or if it cannot be read.
local function read_schedule(entry)
  if not entry then
    return nil
  end
  local word, v, next_at, due_at, last, origin, seen, was, rule =
    entry:match('^(%l+) v=(%d+) next=(%d+) due=(%d+) last=(%d+) from=(%l+) seen=(%d+) was=(%S*)\n(.*)$')
  if not word then
    return nil
  end
  return {
    state = word, v = tonumber(v), next_ms = tonumber(next_at), due_ms = tonumber(due_at), last = tonumber(last),
    from = origin, seen = tonumber(seen), was = was, rule = rule,
  }
end

--- Return the entry of a schedule.
local function write_schedule(schedule)
  return string.format('%s v=%.0f next=%.0f due=%.0f last=%.0f from=%s seen=%.0f was=%s\n%s', schedule.state, schedule.v,
    schedule.next_ms, schedule.due_ms, schedule.last, schedule.from, schedule.seen, schedule.was, schedule.rule)
end

--- Return the field of a schedule's job.
local function job_field(name)
  return name .. '|job'
end

--- Return whether code declared this definition before its present one.
local function was_declared(schedule, digest)
  return (',' .. schedule.was .. ','):find(',' .. digest .. ',', 1, true) ~= nil
end

--- Return the digests of what code declared before this definition, which it declared once.
local function declared_before(schedule, digest)
  local at = (',' .. schedule.was .. ','):find(',' .. digest .. ',', 1, true)
  return at > 1 and schedule.was:sub(1, at - 2) or ''
end

--- Remember a definition that code declared, so that an older worker does not bring it back.
local function note_declared(schedule, digest)
  if was_declared(schedule, digest) then
    return
  end
  local list = schedule.was == '' and digest or schedule.was .. ',' .. digest
  local most = WAS_MAX * 9 - 1
  schedule.was = #list > most and list:sub(-most) or list
end

--- Return whether no worker's code has declared a schedule for so long that it was never in the code, or was taken out.
local function is_unseen(schedule, at)
  return at - schedule.seen > UNDECLARED_MS
end

--- Return whether a schedule of code was taken out of the code.
local function is_undeclared(schedule, at)
  return schedule.from ~= 'live' and is_unseen(schedule, at)
end
