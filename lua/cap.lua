--[[ cap: an operator, or the code of a worker, changes how many a scope takes. It holds at once for every worker; lowering
it ends no claim, and what a rise lets in is opened here.

A record's version is the one that the change was made from (0: nothing was stored, -1: whatever is); if it is another by
now nothing is changed. SOURCE is live, or code for what a task declares: code never replaces a live limit, nor brings
back one that it had declared before, so that an old worker that starts again cannot write an old value back.

The limit `code` ends a live one: what code declared last holds again. What code declares until then is noted for that.
A key for which code declares nothing goes back to its family; where there is nothing to go back to, the call is refused.

A task's first cap counts what runs already: those jobs get the scope and hold it. What waits already takes it up when
claim meets it.

Flags: allow-oom
Keys: meta state waiting lanes open blocked holders caps rates fair scheduled leases outbox slots expiring wake
Later: caps_by_task
Args: slot number:int by why source
Each: scope limit version:int
Unread: scheduled
Uses: call(open_call close_call now) meta(set_fact) emit(emit_queue quoted) state(read_line write_line rank is_claimed)
    scopes(scope_of assume_limit hold_uncounted await_no_more) lane_opening(reevaluate reevaluate_family FAMILY_MAX)
    lane_write(check_lanes write_lanes) queue_cap(queue_cap) wake(wake_needed) batch(call_many read_many)
Returns: ok {SCOPE changed|same|kept|conflict VERSION LIMIT}… | refused arguments SCOPE | refused undeclared SCOPE | epoch.
    VERSION and LIMIT are those that are stored now; of a key that is back at its family, 0 and the family's
Invariants: I3, I5, I10
]]

local refusal = open_call()
if refusal then
  return refusal
end

--- An entry of `caps`, taken apart; nil for none. `code` is what code declares, `was` what it declared before.
local function read_entry(text)
  if not text then
    return nil
  end
  local limit, version, origin = text:match('^(%S+) version=(%d+) from=(%l+)')
  return {
    limit = limit, version = tonumber(version), source = origin, set = text:match(' by=%S+ at=%d+') or '',
    code = origin == 'code' and limit or text:match(' code=(%S+)'), was = text:match(' was=(%S+)$') or '',
  }
end

local function write_entry(entry)
  return entry.limit .. ' version=' .. entry.version .. ' from=' .. entry.source .. entry.set ..
    (entry.source == 'live' and entry.code and ' code=' .. entry.code or '') .. (entry.was ~= '' and ' was=' .. entry.was or '')
end

local function has_declared(entry, limit)
  return limit == entry.code or (',' .. entry.was .. ','):find(',' .. limit .. ',', 1, true)
end

--- Code declares another limit. The one before is remembered, so that it does not come back.
local function declare(entry, limit)
  if entry.code then
    entry.was = entry.was == '' and entry.code or entry.was .. ',' .. entry.code
  end
  entry.code = limit
end

local scopes = {}
for i = 1, each_count do
  local scope, limit = each(i)
  if scope == 'task' or scope == 'fair' or scope == 'weight' or
      not (limit == 'none' or limit == 'code' or limit:match('^%d+$') or limit:match('^%d+/%d+ms/%d+$')) then
    return {'refused', 'arguments', scope}
  end
  scopes[i] = scope
end
local stored = read_many(caps, scopes)
check_keys()

--- Running jobs of a task hold its new scope. Their lanes name it from now on.
local lines = {}
local function count_running(scope)
  local task = scope:sub(6)
  local ids = redis.call('ZRANGE', leases, 0, -1)
  local held = read_many(state, ids)
  for i, id in ipairs(ids) do
    local line = held[i]
    local job = line and line:find(' ' .. scope .. ' ', 1, true) and read_line(line)
    if job and job.task == task and is_claimed(job) and
        not ((job.lane or '') .. '+'):find('+' .. scope .. '+', 1, true) then
      local lane = job.lane or tostring(rank(job))
      job.lane = lane:sub(1, 1) .. '+' .. scope .. lane:sub(2)
      lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
      hold_uncounted(scope, id)
    end
  end
end

local entries, removed, changed, answer, first, sweeps = {}, {}, {}, {}, {}, {}
local queue_before, claimed = queue_cap(), redis.call('ZCARD', leases)
for i = 1, each_count do
  local scope, limit, version = each(i)
  local old = read_entry(stored[i])
  local origin, gone = source, false
  if limit == 'code' then
    origin, limit = 'code', old and old.code
    if not limit then
      local family = scope:match('^([^=]+)=')
      local above = family and read_entry(redis.call('HGET', caps, family))
      if not above then
        return {'refused', 'undeclared', scope}
      end
      gone, limit = true, above.limit
    end
  end
  local outcome = 'changed'
  if gone and not old or old and not gone and old.limit == limit and (old.source == origin or source == 'code') then
    outcome = 'same'
  elseif source == 'code' and old and (old.source == 'live' or has_declared(old, limit)) then
    outcome = 'kept'
  elseif version >= 0 and version ~= (old and old.version or 0) then
    outcome = 'conflict'
  end
  local now_stored = old or {limit = gone and limit or 'none', version = 0}
  if outcome == 'changed' then
    now_stored = {
      limit = limit, version = (old and old.version or 0) + 1, source = origin, was = old and old.was or '',
      code = old and old.code, set = origin == 'live' and ' by=' .. by .. ' at=' .. now or '',
    }
    if source == 'code' then
      declare(now_stored, limit)
    end
    changed[#changed + 1] = '["' .. scope .. '",' .. quoted(old and old.limit) .. ',' ..
      (gone and 'null' or '"' .. limit .. '"') .. ',' .. now_stored.version .. ']'
    -- A key that is removed is looked at as if it had its family's limit.
    assume_limit(scope, limit)
    if gone then
      removed[#removed + 1] = scope
      now_stored.version = 0
    else
      entries[#entries + 1], entries[#entries + 2] = scope, write_entry(now_stored)
    end
    if scope == 'queue' then
      local most = tonumber(limit)
      if queue_before ~= nil and claimed >= queue_before and (not most or claimed < most) then
        wake_needed()
      end
    elseif scope:sub(1, 7) ~= 'weight=' then
      local by_task = scope:sub(1, 5) == 'task='
      if by_task or scope:find('=', 1, true) then
        set_fact(by_task and 'caps_by_task' or 'caps_by_key', 1)
      end
      if by_task and not old then
        first[#first + 1] = scope
      end
      sweeps[#sweeps + 1] = scope
    end
  end
  if source == 'code' and old and old.source == 'live' and not has_declared(old, limit) then
    declare(old, limit)
    entries[#entries + 1], entries[#entries + 2] = scope, write_entry(old)
  end
  for _, value in ipairs({scope, outcome, now_stored.version, now_stored.limit}) do
    answer[#answer + 1] = value
  end
end

-- What the new limits let in. They are looked at as if they were stored.
for _, scope in ipairs(first) do
  count_running(scope)
end
local unfinished = {}
for _, scope in ipairs(sweeps) do
  if scope:find('=', 1, true) then
    await_no_more(scope_of(scope))
    reevaluate(scope)
  else
    local last = reevaluate_family(scope, '', FAMILY_MAX)
    if last then
      wake_needed()
      unfinished[#unfinished + 1], unfinished[#unfinished + 2] = now, 'caps|' .. scope .. '|' .. last
    end
  end
end
check_lanes()

for i = 1, #changed do
  emit_queue('cap_changed', now, by, changed[i], why)
end
call_many('HSET', caps, entries)
call_many('HDEL', caps, removed)
call_many('HSET', state, lines)
call_many('ZADD', scheduled, unfinished)
write_lanes()
return close_call(answer)
