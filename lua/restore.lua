--[[ restore: what a loss took and what it brought back is put right, as SQL knows it.

`restore`: a job that Redis does not have is enqueued again under its own id, with its counters. LINE is its state line
as it was, ready, scheduled or dead, without its place in line, its due time and since when. One that is ready joins the
tail with a new place in line: its old one may be another job's by now. One that is scheduled is ready if DUE_MS is over.
No rule of a full scope keeps it out, since it was accepted once. One that is alive is left alone. One whose name another job holds that is
not overdue, or whose id is remembered since another one ended, is not put back.
`missing`: the same for a job that the log takes for alive too; a baseline says first that it was not.
`remember`: the id of a job that has ended is remembered again up to DUE_MS; LINE is its field of `results`. An id that is in
use, or is remembered, is left alone. No event tells of it: nothing happens to a job.
`name`: the name of a job that has ended stands again up to the instant that its LINE says (`stands=until:MS`). One that another job holds is
left alone. No event tells of it either.
`remove`: a job that had ended and that is alive again goes, if its line still reads LINE. One with a claim in force stays:
its handler may be half-way.

AFTER is the entry of the last restore that the caller knows of, or `-`. If it was another, what the caller read in SQL may
be what that one has put right by now: the call is refused.

Transitions: none -restored-> ready, none -restored-> scheduled, none -restored-> dead, ready -removed-> none,
    scheduled -removed-> none, dead -removed-> none
Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled dead expiring outbox slots wake
With: results kept returned
Meta: sequence restored remembers
Args: slot number:int by why after
Each: id kind due_ms:int line detail spec
Unread: jobs dead expiring
Uses: call(open_call close_call now seldom) backlog(refuse_backlog) meta(facts fact set_fact read_now) emit(emit)
    state(read_line write_line is_claimed) lane_standing(meet_lanes) lane_write(check_lanes write_lanes)
    joining(join write_joining) ended(refuse_keys leaves check_ended write_ended) retaking(is_held retake write_retaken) yielding(emit_yielded write_yielded)
    names(holds_name)
    withdrawal(withdraw write_withdrawn) deadline(note_deadline write_deadlines) due(earliest_due) dead(index_dead unindex_dead)
    wake(wake_needed) batch(call_many) standing(read_lines) baseline_of(baseline_of)
    remembered(keep_line) recalling(recall take_id)
Returns: ok ENTRY {ID restored|removed|remembered|named|known|held|STATE|gone}… | refused audit_backlog BACKLOG BOUND | refused restored ENTRY |
    refused arguments kind | with | epoch. ENTRY is the AFTER of the next call; known: the id is remembered
    already; named: its name stands again; gone: its moment is over, or there is nothing to remove; STATE is that of a job that was left alone
Invariants: I1, I6, I10
]]

local refusal = open_call() or refuse_keys()
if refusal then
  return refusal
end
local last = facts.restored or '-'
if after ~= last then
  return {'refused', 'restored', last}
end
refusal = refuse_backlog()
if refusal then
  return refusal
end

local ids, names, is_remembered = {}, {}, nil
for i = 1, each_count do
  local id, kind, _, line = each(i)
  local job = read_line(line)
  local is_known = kind == 'restore' or kind == 'missing' or kind == 'remove'
  local stands = kind == 'name' and job and job.unique and (job.stands or ''):match('^until:%d+$')
  if not job or not (is_known and job.task or kind == 'remember' and job.once or stands) then
    return {'refused', 'arguments', 'kind'}
  elseif (job.once or job.keep) and not results then
    return {'with'}
  end
  is_remembered = is_remembered or job.once or job.keep
  ids[i] = id
  names[#names + 1] = job.lane
end
local held = read_lines(ids)
if results then
  recall(ids, held)
end
check_keys()
local next_due = earliest_due(0)
if #names > 0 then
  meet_lanes(names)
end

local seq = fact('sequence')
local unheard, restored, removed, specs, lines, due, buried, exhumed = {}, {}, {}, {}, {}, {}, {}, {}
local answer, seen = {last}, {}

--- Put a job where it belongs. Returns its place in line and its due time, as JSON.
local function place_again(id, job, due_ms)
  job.since = now
  if job.expires and job.state ~= 'dead' then
    set_fact('ties', 1)
    note_deadline(id, job.expires)
  end
  if job.state == 'scheduled' and due_ms > now then
    job.due = due_ms
    due[#due + 1], due[#due + 2] = due_ms, 'job|' .. id
    if not next_due or due_ms < next_due then
      wake_needed()
    end
    return 'null,' .. due_ms
  end
  seq = seq + 1
  job.seq = seq
  if job.state == 'dead' then
    buried[#buried + 1] = id
    read_now('dead_retention_ms')
    return seq .. ',null'
  end
  job.state = 'ready'
  join(id, job)
  return seq .. ',null'
end

for i = 1, each_count do
  local id, kind, due_ms, line, detail, spec = each(i)
  local outcome = 'gone'
  local alive = seen[id] or read_line(held[i])
  local is_taken = seldom and seldom.recalled and seldom.recalled[i]
  if kind == 'remember' then
    if is_taken then
      outcome = 'known'
    elseif alive and alive.state ~= 'gone' then
      outcome = alive.state
    elseif due_ms > now then
      outcome = 'remembered'
      take_id(i, id)
      keep_line(id, line, due_ms)
      seen[id] = {state = 'remembered'}
    end
  elseif kind == 'name' then
    local job = read_line(line)
    if is_held(id, job) then
      outcome = 'held'
    elseif holds_name(job, now) then
      outcome = 'named'
      set_fact('ties', 1)
      retake(id, job)
    end
  elseif kind == 'remove' then
    if alive and alive.state ~= 'gone' then
      outcome = alive.state
      if held[i] == line and not seen[id] and not is_claimed(alive) then
        outcome = 'removed'
        removed[#removed + 1] = '["' .. id .. '",' .. detail .. ']'
        if alive.state == 'dead' then
          exhumed[#exhumed + 1] = id
        end
        leaves(id, alive)
        withdraw(id, alive)
        seen[id] = {state = 'gone'}
      end
    end
  elseif alive then
    outcome = alive.state
  elseif is_taken then
    outcome = 'remembered'
  elseif is_held(id, read_line(line)) then
    outcome = 'held'
  else
    local job = read_line(line)
    outcome, seen[id] = 'restored', job
    if kind == 'missing' then
      unheard[#unheard + 1] = baseline_of(id, nil)
    end
    if job.unique then
      set_fact('ties', 1)
    end
    if results then
      take_id(i, id)
    end
    retake(id, job)
    local placed = place_again(id, job, due_ms)
    restored[#restored + 1] = '["' .. id .. '",' .. placed .. ',"' .. job.state .. '",' .. detail .. ']'
    lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
    specs[#specs + 1], specs[#specs + 2] = id, spec
  end
  answer[#answer + 1], answer[#answer + 2] = id, outcome
end
check_lanes()
if seldom then
  check_ended()
end

if seldom then
  emit_yielded(by)
end
emit('baseline', now, by, unheard, why)
local gone_at = emit('removed', now, by, removed, why)
answer[1] = emit('restored', now, by, restored, why) or gone_at or last
if seldom then
  write_yielded()
  write_ended()
  write_withdrawn()
end
unindex_dead(exhumed)
call_many('HSET', jobs, specs)
call_many('HSET', state, lines)
write_joining()
call_many('ZADD', scheduled, due)
if seldom then
  write_retaken()
  write_deadlines()
end
index_dead(buried, now)
write_lanes()
if seq ~= fact('sequence') then
  set_fact('sequence', seq)
end
if is_remembered and not facts.remembers then
  set_fact('ties', 1)
  set_fact('remembers', 1)
end
if answer[1] ~= last then
  set_fact('restored', answer[1])
end
return close_call(answer)
