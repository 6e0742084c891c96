--[[ enqueue: a producer hands over jobs. All new ones are accepted together; an id that is live is a duplicate, and
what happens to a job whose scopes are full is said with it.

FULL, which comes in KINDS, is empty (the job waits), or rules: `discard|SCOPE|N` and `reject|SCOPE|N` for a scope that is
full, counting what holds it and what waits in the job's lane, and `most|N` for how many may wait in the lane. N is the cap
in the producer's code, for as long as no worker has stored one; it may be left out.

KINDS says once what many jobs of the call have in common (see enqueue/kinds.lua); KIND is a place in it, from 1.

SPEC_MAX is up to how many bytes of a job its event keeps whole, arguments included, so that SQL can restore it; 0 is none.

Transitions: none -enqueued-> ready, none -enqueued-> scheduled, none -discarded-> none
Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled outbox slots expiring wake
Meta: sequence caps_by_task
Args: slot number:int by spec_max:int kinds
Each: id kind digest lane spec
Unread: jobs
Uses: call(open_call close_call now now_text) backlog(refuse_backlog) meta(facts fact set_fact) digits(digits_of_next) emit(emit quoted)
    kinds(kinds_from) scopes(scope_of held_in) lane_standing(lane_of meet_lanes) lane_members(put)
    lane_write(check_lanes write_lanes) joining(join_lists write_joining) due(earliest_due) wake(wake_needed)
    batch(call_many read_many)
Returns: ok {PLACE duplicate|discarded|rejected SCOPE}… | refused audit_backlog BACKLOG BOUND |
    refused arguments kinds|kind | epoch. PLACE counts the jobs of the call from 1; SCOPE is - for a duplicate
Invariants: I1 (the outbox entry and the jobs are one write), I6, I10
]]

local refusal = open_call()
if refusal then
  return refusal
end
refusal = refuse_backlog()
if refusal then
  return refusal
end

local kind_of = kinds_from(kinds)
if not kind_of then
  return {'refused', 'arguments', 'kinds'}
end

local ids, names = {}, {}
for i = 1, each_count do
  local id, place, _, lane = each(i)
  if not kind_of[place] then
    return {'refused', 'arguments', 'kind'}
  end
  ids[i] = id
  if lane ~= '' then
    names[#names + 1] = lane
  end
end
local live = read_many(state, ids)
check_keys()
local next_due = earliest_due(0)
if #names > 0 then
  meet_lanes(names)
end

--- The lane of a job whose producer knows of no cap on its task, if there is one by now.
local capped_tasks = {}
local function lane_for(kind)
  local task = kind.task
  if capped_tasks[task] == nil then
    capped_tasks[task] = redis.call('HEXISTS', caps, task) == 1
  end
  return capped_tasks[task] and kind.priority .. '+' .. task or ''
end

--- How many wait in a lane, with those of this call. `waits` is how many Redis has.
local function waiting_in_lane(lane)
  if not lane.waits then
    lane.waits = redis.call('ZLEXCOUNT', waiting, '[' .. lane.name .. '|', '(' .. lane.name .. '}')
  end
  return lane.waits + (lane.added and #lane.added or 0)
end

--- Which rule keeps a job out: its kind, the scope or the lane that is full, and how many it takes; nil if none does.
local function kept_out(name, rules)
  local lane = lane_of(name)
  for kind, value, declared in rules:gmatch('(%l+)|([^|%s]+)|?(%d*)') do
    local queued = waiting_in_lane(lane)
    if kind == 'most' then
      if queued >= tonumber(value) then
        return 'reject', name
      end
    else
      local scope = scope_of(value)
      local cap = scope.cap or not scope.limit.is_set and tonumber(declared)
      if cap and held_in(scope) + queued >= cap then
        return kind, value, cap
      end
    end
  end
  return nil
end

local seq = fact('sequence')
local plain = {[0] = {}, {}, {}, {}}
local events, dropped, specs, lines, due, seen, answer = {}, {}, {}, {}, {}, {}, {}
local since = ' since=' .. now_text
for i = 1, each_count do
  local id, place, digest, lane, spec = each(i)
  local kind = kind_of[place]
  local head = kind.head
  if lane == '' and facts.caps_by_task then
    lane = lane_for(kind)
  end
  local out, on, cap
  if live[i] or seen[id] then
    out, on = 'duplicate', '-'
  elseif kind.full ~= '' then
    out, on, cap = kept_out(lane, kind.full)
  end
  if out then
    if out == 'discard' then
      dropped[#dropped + 1] = '["' .. id .. '","' .. kind.task:sub(6) .. '",' .. quoted(lane) .. ',' ..
        quoted(on) .. ',' .. cap .. ']'
    end
    answer[#answer + 1] = i
    answer[#answer + 1] = out == 'discard' and 'discarded' or out == 'reject' and 'rejected' or out
    answer[#answer + 1] = on
  else
    seen[id] = true
    local at = #lines + 1
    specs[at], specs[at + 1] = id, spec
    lines[at] = id
    local ending = '"]'
    if lane ~= '' then
      head, ending = head .. ' lane=' .. lane, '","' .. lane .. '"]'
    end
    if #spec <= spec_max then
      ending = (lane ~= '' and ending:sub(1, -2) or '",null') .. ',' .. cjson.encode(spec) .. ']'
    end
    local due_at = kind.due_ms or now + kind.delay_ms
    if due_at > now then
      lines[at + 1] = 'scheduled ' .. head .. ' due=' .. due_at .. since
      due[#due + 1], due[#due + 2] = due_at, 'job|' .. id
      events[#events + 1] = '["' .. id .. '",null,' .. due_at .. ',' .. kind.detail .. digest .. ending
      if not next_due or due_at < next_due then
        wake_needed()
      end
    else
      seq = seq + 1
      local place_text = digits_of_next(seq)
      lines[at + 1] = 'ready ' .. head .. ' seq=' .. place_text .. since
      events[#events + 1] = '["' .. id .. '",' .. place_text .. ',null,' .. kind.detail .. digest .. ending
      if lane ~= '' then
        put(lane_of(lane), place_text, id)
      else
        local list = plain[kind.priority]
        list[#list + 1] = id
      end
    end
  end
end
join_lists(plain)
check_lanes()

-- An id that was dropped may come again in the same call, and be taken.
emit('discarded', now_text, by, dropped)
emit('enqueued', now_text, by, events)
call_many('HSET', jobs, specs)
call_many('HSET', state, lines)
write_joining()
call_many('ZADD', scheduled, due)
write_lanes()
if seq ~= fact('sequence') then
  set_fact('sequence', seq)
end
return close_call(answer)
