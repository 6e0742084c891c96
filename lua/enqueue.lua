--[[ enqueue: a producer hands over jobs. All new ones are accepted together; an id that is live is a duplicate, and
what happens to a job whose scopes are full is said with it. A job that waits past its deadline yields its id (see enqueue/overdue).

FULL, which comes in KINDS, is empty (the job waits), or rules: `discard|SCOPE|N` and `reject|SCOPE|N` for a scope that is
full, counting what holds it and what waits in the job's lane, and `most|N` for how many may wait in the lane. N is the cap
in the producer's code, for as long as no worker has stored one; it may be left out.

A unique job has its name behind its digest, after a space (see enqueue/naming); one whose id is remembered has there what its call is
compared by (see include/job/recalling).

KINDS says once what many jobs of the call have in common (see enqueue/kinds.lua); KIND is a place in it, from 1.

A plain job that is ready at once gets no line in `state`: what it would say is the first line of its value in `jobs` (see
include/job/standing). A job in a lane, or with a delay or a deadline, gets one, and so does one whose JSON is long: to put a line before it,
Lua has to copy it, at some 12 instructions a byte.

SPEC_MAX is up to how many bytes of a job its event keeps whole, arguments included, so that SQL can restore it; 0 is none.

Transitions: none -enqueued-> ready, none -enqueued-> scheduled, none -discarded-> none, ready -replaced-> none,
    scheduled -replaced-> none, ready -expired-> none, scheduled -expired-> none
Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled outbox slots expiring wake
With: results kept returned
Meta: sequence caps_by_task ties remembers
Args: slot number:int by spec_max:int kinds
Each: id kind digest lane spec
Unread: state
Uses: call(open_call close_call now now_text seldom seldom_list) backlog(refuse_backlog) meta(facts fact set_fact) digits(digits_of_next)
    emit(emit quoted) kinds(kinds_from) placing(lane_for kept_out) lane_standing(lane_of meet_lanes) lane_members(put)
    ids(is_id ID_LENGTH)
    lane_write(check_lanes write_lanes) joining(tail_of write_joining) due(earliest_due) wake(wake_needed) deadline(note_deadline write_deadlines)
    naming(want_name read_holders kept_by take_name emit_left write_left write_names) ended(refuse_keys check_ended) overdue(expire_overdue)
    recalling(want_memory recall refuse_full same_or_not memory_of take_id note_same) batch(call_many read_many)
Returns: ok {PLACE duplicate|mismatch|discarded|rejected|held|replaced WHAT}… | refused audit_backlog BACKLOG BOUND |
    refused results_full IDS BOUND SETTING | refused arguments kinds|kind|id|digest | with | epoch. PLACE counts the jobs of the call from 1; WHAT is - for a
    duplicate and for a mismatch (a duplicate whose task or arguments are others), the job that holds the name of one that is held, the job that was replaced by one that was accepted, else the scope
Invariants: I1 (the outbox entry and the jobs are one write), I6, I10
]]

local SPEC_LONG = 256   -- bytes of JSON from which a line in `state` costs less than the copy

local refusal = open_call() or refuse_keys() or refuse_backlog()
if refusal then
  return refusal
end

local kind_of = kinds_from(kinds)
if not kind_of then
  return {'refused', 'arguments', 'kinds'}
end

-- Nearly all calls are of plain jobs, many of them of one: so tables that such a call does without are made when they are
-- needed, and what only others write is not read.
local ids, names, may_wait, is_long = {}, nil, false, false
for i = 1, each_count do
  local id, place, digest, lane, spec = each(i)
  local kind = kind_of[place]
  if not kind then
    return {'refused', 'arguments', 'kind'}
  elseif #id ~= ID_LENGTH and not is_id(id) then
    return {'refused', 'arguments', 'id'}
  end
  if kind.ties then
    if (kind.remember or kind.keep) and not results then
      return {'with'}
    elseif kind.remember then
      digest = want_memory(i, digest)
    end
    if not digest or kind.unique and not want_name(i, digest) then
      return {'refused', 'arguments', 'digest'}
    end
  end
  ids[i] = id
  if kind.may_wait then
    may_wait = true
  end
  if #spec > SPEC_LONG then
    is_long = true
  end
  if lane ~= '' then
    names = names or {}
    names[#names + 1] = lane
  end
end
local live = read_many(jobs, ids)
local caps_by_task = facts.caps_by_task
if names or may_wait or caps_by_task or is_long then
  check_keys()
end
if facts.ties then
  expire_overdue(ids, live)
end
if results then
  recall(ids, live)
  if seldom and seldom.calls then
    refusal = refuse_full(live)
    if refusal then
      return refusal
    end
  end
end
local recalled = seldom and seldom.recalled
local next_due = may_wait and earliest_due(0)
if names then
  meet_lanes(names)
end

if seldom then
  local first = {}   -- id → its first record
  read_holders(each_count, function(i)
    local id, place = each(i)
    first[id] = first[id] or i
    return not live[i] and not (recalled and recalled[i]) and first[id] == i and kind_of[place] or nil
  end)
end

local seq, place_text = fact('sequence'), nil
local events, values, taken = {}, {}, 0
local lines, due, dropped, answer = {}, nil, nil, {}
local seen = each_count > 1 and {}
local tail, tail_kind   -- the plain list that the last plain job has joined, and its kind
local since = ' since=' .. now_text
local since_line = since .. '\n'
for i = 1, each_count do
  local id, place, digest, lane, spec = each(i)
  local kind = kind_of[place]
  if caps_by_task and lane == '' then
    lane = lane_for(kind)
  end
  local out, on, cap
  local noted, has_left
  if seldom then
    noted, has_left = seldom.noted and seldom.noted[id], seldom.left and seldom.left[id]
  end
  if live[i] and not has_left or seen and seen[id] or recalled and recalled[i] or noted then
    out, on = 'duplicate', '-'
    if results and seldom then
      out, on = same_or_not(i, seen and seen[id], noted)
    end
  else
    if kind.unique then
      on = kept_by(i, kind, ids)
      out = on and 'held'
      if out and kind.remember and kind.unique ~= 'reject' then
        note_same(i, id, on, kind.remember)
      end
    end
    if not out and kind.full ~= '' then
      out, on, cap = kept_out(lane, kind.full)
    end
  end
  if out then
    if out == 'discard' then
      dropped = dropped or {}
      dropped[#dropped + 1] = '["' .. id .. '","' .. kind.task:sub(6) .. '",' .. quoted(lane) .. ',' ..
        quoted(on) .. ',' .. cap .. ']'
    end
    answer[#answer + 1] = i
    answer[#answer + 1] = out == 'discard' and 'discarded' or out == 'reject' and 'rejected' or out
    answer[#answer + 1] = on
  else
    if seen then
      seen[id] = i
    end
    taken = taken + 1
    local ending = '"]'
    if lane ~= '' then
      ending = '","' .. lane .. '"]'
    end
    if #spec <= spec_max then
      ending = (lane ~= '' and ending:sub(1, -2) or '",null') .. ',' .. cjson.encode(spec) .. ']'
    end
    if results then
      take_id(i, id)
    end
    local due_at, until_text, has_line, head = nil, '', false, kind.head
    local old_place
    if kind.behind then
      ending = (#spec <= spec_max and ending:sub(1, -2) or (lane ~= '' and ending:sub(1, -2) or '",null') .. ',null') .. kind.behind
      seldom_list('keeping')[1] = true
    elseif kind.may_wait then
      due_at = kind.due_ms or now + kind.delay_ms
      if kind.ties then
        has_line = true
        local expires = kind.expires_at or kind.expires_in and now + kind.expires_in
        ending = (#spec <= spec_max and ending:sub(1, -2) or (lane ~= '' and ending:sub(1, -2) or '",null') .. ',null') ..
          ',' .. (expires or 'null')
        local stands
        if expires then
          until_text = ' expires=' .. expires
          note_deadline(id, expires)
        end
        if kind.remember then
          digest = seldom.plain[i]
        end
        if kind.unique then
          local name, due_after, old
          digest, name, stands, due_after, old, old_place = take_name(i, id, kind, lane)
          due_at = due_after or due_at
          head, ending = head .. ' unique=' .. name, ending .. ',"' .. name .. '"'
          if stands then
            until_text = ' stands=' .. stands .. until_text
          end
          if old then
            answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = i, 'replaced', old
          end
        end
        if kind.remember then
          local in_line, in_event = memory_of(i, kind.remember)
          head, ending = head .. in_line, ending .. (kind.unique and '' or ',null') .. in_event
        end
        -- Fields of the event may be left out at its end only: `behind` stands for those between the last one and the next.
        local behind = kind.remember and (seldom.calls[i] == '' and ',null' or '') or kind.unique and ',null,null' or ',null,null,null'
        if stands then
          ending, behind = ending .. behind .. ',"' .. stands .. '"', ''
        end
        if kind.keep then
          head, ending = head .. ' keep=' .. kind.keep, ending .. behind .. (stands and ',' or ',null,') .. kind.keep
          seldom_list('keeping')[1] = true
        end
        ending = ending .. ']'
      end
    end
    if due_at and due_at > now then
      due = due or {}
      due[#due + 1], due[#due + 2] = due_at, 'job|' .. id
      local at = #lines
      lines[at + 1], lines[at + 2] = id, 'scheduled ' .. head .. (lane ~= '' and ' lane=' .. lane or '') .. until_text .. ' due=' .. due_at .. since
      events[taken] = '["' .. id .. '",null,' .. due_at .. ',' .. kind.detail .. digest .. ending
      if not next_due or due_at < next_due then
        wake_needed()
      end
    else
      local last_place = place_text
      if old_place then
        place_text = old_place
      else
        seq = seq + 1
        place_text = digits_of_next(seq)
      end
      events[taken] = '["' .. id .. '",' .. place_text .. ',null,' .. kind.detail .. digest .. ending
      if lane ~= '' then
        local at = #lines
        lines[at + 1], lines[at + 2] = id, 'ready ' .. head .. ' lane=' .. lane .. ' seq=' .. place_text .. until_text .. since
        put(lane_of(lane), place_text, id)
      else
        if tail_kind ~= kind then
          tail, tail_kind = tail_of(kind.priority), kind
        end
        if not old_place then
          tail[#tail + 1] = id
        end
        if has_line or #spec > SPEC_LONG then
          local at = #lines
          lines[at + 1], lines[at + 2] = id, 'ready ' .. head .. ' seq=' .. place_text .. until_text .. since
        else
          spec = head .. ' seq=' .. place_text .. since_line .. spec
        end
      end
      if old_place then
        place_text = last_place
      end
    end
    values[2 * taken - 1], values[2 * taken] = id, spec
  end
end
check_lanes()
if seldom then
  check_ended()
end

-- An id that another job gives up in this call may be dropped, and one that was dropped may come again, and be taken.
if seldom then
  emit_left(by)
end
emit('discarded', now_text, by, dropped)
emit('enqueued', now_text, by, events)
if seldom then
  write_left()
end
call_many('HSET', jobs, values)
call_many('HSET', state, lines)
write_joining()
call_many('ZADD', scheduled, due)
if seldom then
  write_deadlines()
  write_names()
  if not facts.ties and (taken > 0 or seldom.kept_lines) then
    set_fact('ties', 1)
  end
  if not facts.remembers and (seldom.kept_lines or seldom.keeping or taken > 0 and seldom.calls) then
    set_fact('remembers', 1)
  end
end
write_lanes()
if place_text then
  set_fact('sequence', place_text)
end
return close_call(answer)
