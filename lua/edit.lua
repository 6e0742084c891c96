--[[ edit: an operator or a producer changes when jobs that wait will run: their priority, their due time, their deadline.

PRIORITY is a name. DUE and EXPIRES are Unix ms, or `+` and ms from now; `+0` is at once. EXPIRES `-` takes the deadline away. What is empty
stays as it is. LINE is
the state line on which the change rests; empty: whichever the job has.

A job that gets another priority joins the tail of that line, in the lane of that priority if it has one. A job that is to
run now returns to its old place, if it had one.

Transitions: ready -edited-> ready, ready -edited-> scheduled, scheduled -edited-> ready, scheduled -edited-> scheduled
Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled outbox slots expiring wake
Meta: ties
Later: sequence
Args: slot number:int by why priority due expires
Each: id line
Unread: ready scheduled expiring
Uses: call(open_call close_call now seldom) backlog(refuse_backlog) meta(facts fact set_fact) emit(emit quoted)
    state(count rank write_line) named(decide_named) withdrawal(withdraw write_withdrawn) joining(join write_joining)
    ready(return_ready) lane_standing(lane_of) lane_members(put) lane_write(check_lanes write_lanes)
    deadline(note_deadline write_deadlines) due(earliest_due) wake(wake_needed) digits(digits) batch(call_many)
Returns: ok {ID edited|same|changed|never|running|cancelling|dead|gone}… | refused audit_backlog BACKLOG BOUND |
    refused arguments priority|due|expires | epoch. changed: its line is another one; never: it could begin at its
    deadline at the earliest
Invariants: I6, I8, I10, I19
]]

local refusal = open_call() or refuse_backlog()
if refusal then
  return refusal
end

--- Unix ms, from a text that may count from now; nil if it is none.
local function moment(text)
  local ahead, ms = text:match('^(%+?)(%d+)$')
  local value = ms and whole_number(tonumber(ms))
  return value and (ahead == '+' and now + value or value)
end

local new_rank = PRIORITY_RANK[priority]
local due_at, deadline = moment(due), moment(expires)
if priority ~= '' and not new_rank then
  return {'refused', 'arguments', 'priority'}
elseif due ~= '' and not due_at then
  return {'refused', 'arguments', 'due'}
elseif expires ~= '' and expires ~= '-' and not deadline then
  return {'refused', 'arguments', 'expires'}
end
check_keys()

local expected = {}
for i = 1, each_count do
  local id, line = each(i)
  expected[id] = line
end

local seq, next_due = fact('sequence'), earliest_due(0)
local events, lines, edited = {}, {}, {}
local endless = {}                               -- members of `expiring` of deadlines that are taken away
local due_times = {}                             -- times and members of `scheduled`
local returning = {[0] = {}, {}, {}, {}}         -- by priority: {id, seq} of those that return to a plain list

--- A number of an event, as JSON; null for what a client has damaged.
local function number_or_null(value)
  local found = whole_number(value)
  return found and digits(found) or 'null'
end

--- A job is in line from here on. Without a place it gets one, at the tail.
local function let_wait(id, job)
  if not job.seq then
    seq = seq + 1
    job.seq = seq
    join(id, job)
  elseif job.lane then
    put(lane_of(job.lane), count(job, 'seq'), id)
  else
    local list = returning[rank(job)]
    list[#list + 1] = {id, count(job, 'seq')}
    wake_needed()
  end
end

--- Change a job whose due time is `new_due` from now on; nil: it is ready.
local function change(id, job, new_due, new_expires)
  local old_due, old_priority, old_expires = job.due, job.priority or DEFAULT_PRIORITY, job.expires
  local moves = new_rank ~= nil and new_rank ~= rank(job)
  local was_ready, moved_to = job.state == 'ready', nil
  local has_new_place = moves or was_ready ~= (new_due == nil)
  if has_new_place then
    withdraw(id, job)
  end
  if moves then
    job.priority, job.seq = priority, nil
    if priority == DEFAULT_PRIORITY then
      job.priority = nil
    end
    if job.lane then
      job.lane = new_rank .. job.lane:sub(2)
      moved_to = job.lane
    end
  end
  job.state, job.since, job.due = new_due and 'scheduled' or 'ready', now, new_due
  if new_due and (has_new_place or new_due ~= tonumber(old_due)) then
    due_times[#due_times + 1], due_times[#due_times + 2] = new_due, 'job|' .. id
    if not next_due or new_due < next_due then
      wake_needed()
    end
  elseif not new_due and has_new_place then
    let_wait(id, job)
  end
  if not new_expires and old_expires then
    job.expires = nil
    endless[#endless + 1] = 'job|' .. id
  elseif new_expires ~= old_expires then
    job.expires = digits(new_expires)
    note_deadline(id, job.expires)
  end
  events[#events + 1] = '["' .. id .. '",' .. number_or_null(job.seq) .. ',' .. number_or_null(new_due) .. ',"' ..
    (job.priority or DEFAULT_PRIORITY) .. '",' .. quoted(moved_to) .. ',' .. number_or_null(job.expires) .. ',' ..
    number_or_null(old_due) .. ',"' .. old_priority .. '",' .. number_or_null(old_expires) .. ']'
  lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
end

local answer = decide_named(function(id, job)
  if edited[id] then
    return 'edited'
  elseif job.state ~= 'ready' and job.state ~= 'scheduled' then
    return nil
  elseif expected[id] ~= '' and expected[id] ~= write_line(job) then
    return 'changed'
  end
  local old_due, old_expires = tonumber(job.due), tonumber(job.expires)
  local new_due, new_expires = old_due, deadline or expires ~= '-' and old_expires or nil
  if due_at then
    new_due = due_at > now and due_at or nil
  end
  if new_expires and new_expires <= math.max(now, new_due or 0) then
    return 'never'
  elseif new_due == old_due and new_expires == old_expires and (not new_rank or new_rank == rank(job)) then
    return 'same'
  end
  edited[id] = true
  if new_expires == old_expires then
    new_expires = job.expires
  end
  change(id, job, new_due, new_expires)
  return 'edited'
end)
check_lanes()

emit('edited', now, by, events, why)
if seldom then
  write_withdrawn()
  write_deadlines()
end
call_many('HSET', state, lines)
call_many('ZREM', expiring, endless)
call_many('ZADD', scheduled, due_times)
write_joining()
for at = 0, 3 do
  return_ready(at, returning[at])
end
write_lanes()
if seq ~= fact('sequence') then
  set_fact('sequence', seq)
end
if deadline and #events > 0 and not facts.ties then
  set_fact('ties', 1)
end
return close_call(answer)
