--[[ lanes: how jobs with scopes wait.

Jobs of the same priority and scopes wait in one lane, first in first out. A lane is open (it may be served) or blocked
on one scope that has no room. What waits for a cap is the lane, so blocking costs the same whatever waits in it.

A lane's ORDER is its priority and the place in line of its head; in a fair queue, the virtual time of its key instead of
the place (start-time fair queueing: Goyal, Vin, Cheng 1996).

To re-evaluate a scope is to open the first lane that is blocked on it, if it has room. This happens whenever
(a) a place in it becomes free, (b) its limit changes or its rate resumes, (c) an open lane that contains it moves on: it
is emptied, blocked on another scope, or stands behind one that is blocked. So no scope has room and a blocked lane
unless an open lane contains it; there is no hand-off that could be lost.

All of it is decided in Lua and written by `write_lanes` in the end.

Keys: waiting lanes open blocked caps holders rates scheduled expiring fair
Meta: fair fair_clock fair_top
Uses: batch meta scopes heap
]]

local RANK = 1e15       -- orders of one priority are below the next one's
local FAIR_STEP = 10000 -- virtual time that one job of weight 1 takes
local SCOPES_MAX = 100    -- scopes of a family that one call re-evaluates; claims go on with the rest

local known_lanes, lane_list = {}, {}
local waiting_in, waiting_out = {}, {}
local blocked_here = {}   -- scope → lanes of this call that are, or were, blocked on it
local blocked_pages = {}  -- scope → what Redis has blocked on it, as far as it was read
local open_lanes = {}     -- a heap; entries whose lane has moved on are passed over
local finishes = {}       -- fair: key → virtual finish time, as far as it was read
local weights = {}
local finished = {}       -- fair: keys whose finish time changed
local opened = false      -- whether a lane may be served that could not before, or has more to serve
local any_blocked

local function padded(number)
  return string.format('%016.0f', number)
end

--- Where a job with a place in line stands in its lane.
local function member_of(lane, seq, id)
  return lane.name .. '|' .. padded(seq) .. '|' .. id
end

--- The virtual finish time of a fair queue's key.
local function finish_of(key)
  if not finishes[key] then
    finishes[key] = tonumber(redis.call('ZSCORE', fair, key)) or 0
  end
  return finishes[key]
end

local function weight_of(key)
  if not weights[key] then
    local stored = redis.call('HGET', caps, 'weight=' .. key)
    weights[key] = math.max(1, stored and tonumber(stored:match('^%d+')) or 1)
  end
  return weights[key]
end

local function is_fair()
  return facts.fair == '1'
end

--- The order of a lane whose next job has this place in line.
local function order_of(lane, seq)
  if not is_fair() then
    return lane.rank * RANK + seq
  end
  return lane.rank * RANK + math.max(fact('fair_clock'), finish_of(lane.key))
end

local function note_blocked(lane)
  local list = blocked_here[lane.on] or {}
  list[#list + 1] = lane
  blocked_here[lane.on] = list
end

local function block(lane, on)
  lane.where, lane.on = 'blocked', on
  any_blocked = true
  note_blocked(lane)
end

local function open_lane(lane)
  lane.where, lane.on = 'open', nil
  opened = true
  heap_push(open_lanes, lane.order, lane)
end

--- Give a lane another order; it stays open, or blocked on its scope.
local function reorder(lane, order)
  lane.order = order
  if lane.where == 'open' then
    heap_push(open_lanes, order, lane)
  end
end

--- Take note of a lane, and of where it stands so far: `open`, `blocked` on a scope, or nowhere (nil).
local function meet_lane(name, where, on, order)
  local names, key = {}, ''
  local from, plus = 3, name:find('+', 3, true)
  while plus do
    names[#names + 1] = name:sub(from, plus - 1)
    from, plus = plus + 1, name:find('+', plus + 1, true)
  end
  names[#names + 1] = name:sub(from)
  for i = 1, #names do
    if names[i]:sub(1, 5) == 'fair=' then
      key = names[i]:sub(6)
    end
  end
  local lane = {
    name = name, rank = tonumber(name:sub(1, 1)), scopes = names, key = key,
    where = where, on = on, order = order, was = where, was_on = on, was_order = order,
    added = {}, page = {}, at = 1, offset = 0, step = 2,
  }
  known_lanes[name] = lane
  lane_list[#lane_list + 1] = lane
  if where == 'blocked' then
    note_blocked(lane)
  end
  return lane
end

--- Read many lanes at once.
local function meet_lanes(names)
  local unknown, seen = {}, {}
  for i = 1, #names do
    if not known_lanes[names[i]] and not seen[names[i]] then
      seen[names[i]] = true
      unknown[#unknown + 1] = names[i]
    end
  end
  local places = read_many(lanes, unknown)
  for i = 1, #unknown do
    local where, on, order = (places[i] or ''):match('^(%l+) ?(%S*) (%d+)$')
    local lane = meet_lane(unknown[i], where, where == 'blocked' and on or nil, tonumber(order))
    if where == 'open' then
      heap_push(open_lanes, lane.order, lane)
    end
  end
end

local function lane_of(name)
  if not known_lanes[name] then
    meet_lanes({name})
  end
  return known_lanes[name]
end

--- False if no lane is blocked at all, which is the rule where caps are never reached.
local function may_be_blocked()
  if any_blocked == nil then
    any_blocked = redis.call('ZCARD', blocked) > 0
  end
  return any_blocked
end

--- The first lane that is blocked on a scope, nil if there is none.
local function first_blocked(on)
  if not may_be_blocked() then
    return nil
  end
  local page = blocked_pages[on] or {members = {}, at = 1, offset = 0, step = 1}
  blocked_pages[on] = page
  local best
  while not page.finished do
    local member = page.members[page.at]
    if not member then
      page.members = redis.call('ZRANGEBYLEX', blocked, '[' .. on .. '|', '(' .. on .. '}', 'LIMIT', page.offset, page.step)
      page.finished = #page.members == 0
      page.offset, page.at, page.step = page.offset + #page.members, 1, math.min(page.step * 2, 100)
    else
      local order, name = member:match('^[^|]*|(%d+)|(.*)$')
      if not known_lanes[name] then
        best = {name = name, order = tonumber(order), unmet = true}
        break
      end
      page.at = page.at + 1
    end
  end
  local here, left = blocked_here[on] or {}, {}
  for i = 1, #here do
    local lane = here[i]
    if lane.where == 'blocked' and lane.on == on then
      left[#left + 1] = lane
      if not best or lane.order < best.order then
        best = lane
      end
    end
  end
  blocked_here[on] = left
  if best and best.unmet then
    return meet_lane(best.name, 'blocked', on, best.order)
  end
  return best
end

--- Open the first lane that is blocked on a scope, if the scope has room (and, with `before`, if the lane comes before
--- that order).
local function reevaluate(name, before)
  local scope = scope_of(name)
  if (scope.rate or scope.stored) and not has_room(scope) then
    return
  end
  local lane = first_blocked(name)
  if lane and (not before or lane.order < before) and has_room(scope) then
    open_lane(lane)
  end
end

--- What a lane's scopes take.
local function scopes_of(lane)
  local found = lane.objects
  if not found then
    found = {}
    for i = 1, #lane.scopes do
      found[i] = scope_of(lane.scopes[i])
    end
    lane.objects = found
  end
  return found
end

--- (c): an open lane has moved on; `refused_by` is the scope that it is now blocked on. Whom it kept waiting is looked
--- at here, so it keeps nobody waiting who comes later in this call.
local function moved_on(lane, refused_by)
  if lane.promises then
    lane.promises = nil
    for i = 1, #lane.scopes do
      scope_of(lane.scopes[i]).promised = 0
    end
  end
  if not may_be_blocked() then
    return
  end
  for i = 1, #lane.scopes do
    local name = lane.scopes[i]
    if name ~= refused_by and name ~= 'fair=' .. lane.key then
      reevaluate(name, lane.where == 'open' and lane.order or nil)
    end
  end
end

--- Find its place for a lane that has none. Beyond as many lanes as a scope has room for it is blocked at once: the
--- lanes opened before it contain the scope, and open it when they move on. It may come before them, though; then they
--- would make it wait for all that comes before them.
local function place(lane, order)
  lane.order = order
  for i = 1, #lane.scopes do
    local scope = scope_of(lane.scopes[i])
    if scope.resumes and not scope.is_waited_for then
      scope.is_waited_for = first_blocked(scope.name) ~= nil
      if not scope.is_waited_for then
        -- Nobody waits for it, so nobody asked when its limit changed.
        await_no_more(scope)
      end
    end
    local promised = order > (scope.promised_until or 0) and scope.promised or 0
    if not has_room(scope) or scope.rate and promised > 0 or
        scope.cap and promised >= scope.cap - held_in(scope) then
      block(lane, scope.name)
      return
    end
  end
  for i = 1, #lane.scopes do
    local scope = scope_of(lane.scopes[i])
    scope.promised = scope.promised + 1
    scope.promised_until = math.max(scope.promised_until or 0, order)
  end
  lane.promises = true
  open_lane(lane)
end

--- Put a job into its lane. `job` may be its record.
local function put(lane, seq, id, job)
  local member = member_of(lane, seq, id)
  if waiting_out[member] then
    waiting_out[member] = nil
  else
    waiting_in[member] = true
  end
  local added, at = lane.added, #lane.added
  while at > 0 and added[at].seq > seq do
    added[at + 1] = added[at]
    at = at - 1
  end
  added[at + 1] = {seq = seq, id = id, job = job, member = member}
  if not lane.where then
    place(lane, order_of(lane, seq))
  elseif not is_fair() and lane.rank * RANK + seq < lane.order then
    reorder(lane, lane.rank * RANK + seq)
    if lane.where == 'blocked' then
      reevaluate(lane.on)
    end
  end
  opened = opened or lane.where == 'open'
end

--- The first job of a lane: {seq, id, member, and its record if known}; nil if there is none.
local function peek(lane)
  local stored
  while true do
    stored = lane.page[lane.at]
    if not stored and lane.last then
      break
    elseif not stored then
      local members = redis.call('ZRANGEBYLEX', waiting, '[' .. lane.name .. '|', '(' .. lane.name .. '}', 'LIMIT',
        lane.offset, lane.step)
      -- A page that is not full is the last one. Its entries may still be to be served.
      lane.at, lane.page, lane.last = 1, {}, #members < lane.step
      lane.offset, lane.step = lane.offset + #members, math.min(lane.step * 2, 100)
      local ends = #lane.name + 2     -- where the place in line begins, 16 digits
      for i = 1, #members do
        local member = members[i]
        lane.page[i] = {seq = tonumber(member:sub(ends, ends + 15)), id = member:sub(ends + 17), member = member}
      end
    elseif waiting_out[stored.member] then
      lane.at = lane.at + 1
    else
      break
    end
  end
  local added = lane.added[1]
  if added and (not stored or added.seq < stored.seq) then
    return added
  end
  return stored
end

--- Take a job out of its lane, wherever it stands in it, and let the lane stand where it then belongs.
local function remove(lane, entry)
  if lane.page[lane.at] == entry then
    waiting_out[entry.member] = true
    lane.at = lane.at + 1
  elseif waiting_in[entry.member] then
    waiting_in[entry.member] = nil
    for i = 1, #lane.added do
      if lane.added[i].member == entry.member then
        table.remove(lane.added, i)
        break
      end
    end
  else
    waiting_out[entry.member] = true
  end
  local head = peek(lane)
  if not head then
    lane.where, lane.on = nil, nil
  elseif not is_fair() then
    local order = lane.rank * RANK + head.seq
    if order ~= lane.order then
      reorder(lane, order)
    end
  end
end

--- Slots to free, once everything is put back: (lane name, id) pairs.
local freed = {}

--- The claim of a job ends: its slots will be free.
local function release(lane_name, id)
  if lane_name then
    freed[#freed + 1] = {lane_name, id}
  end
end

--- Free the slots, then re-evaluate their scopes: (a).
local function free_slots()
  local names, seen = {}, {}
  for i = 1, #freed do
    for name in freed[i][1]:gmatch('%+([^+]+)') do
      if is_counted(name) then
        holders_out[#holders_out + 1] = name .. '|' .. freed[i][2]
        count_out(name)
        if not seen[name] then
          seen[name] = true
          names[#names + 1] = name
        end
      end
    end
  end
  freed = {}
  if #names > 0 and may_be_blocked() then
    for i = 1, #names do
      reevaluate(names[i])
    end
  end
end

--- (b): re-evaluate all scopes of a family, in order, from after `after` on ('' for the first), at most `most` of them.
--- Returns the last one if there are more.
local function reevaluate_family(family, after, most)
  for _ = 1, most do
    local from = after == '' and '[' .. family .. '=' or '(' .. after .. '}'
    local member = redis.call('ZRANGEBYLEX', blocked, from, '(' .. family .. '>', 'LIMIT', 0, 1)[1]
    if not member then
      return nil
    end
    after = member:match('^([^|]*)|')
    await_no_more(scope_of(after))
    reevaluate(after)
  end
  return after
end

--- Fair queues: a job of this lane is served.
local function serve_fairly(lane)
  if is_fair() then
    local tag = lane.order - lane.rank * RANK
    if tag > fact('fair_clock') then
      set_fact('fair_clock', tag)
    end
    -- From the clock on, not from a time that passed while the lane was blocked: waiting saves nothing up.
    local finish = math.max(fact('fair_clock'), finish_of(lane.key)) + math.ceil(FAIR_STEP / weight_of(lane.key))
    finishes[lane.key] = finish
    finished[lane.key] = true
    if finish > fact('fair_top') then
      set_fact('fair_top', finish)
    end
    if lane.where then
      reorder(lane, lane.rank * RANK + finish)
    end
  end
end

--- How many more lanes are open than before the call.
local function open_growth()
  local growth = 0
  for i = 1, #lane_list do
    local lane = lane_list[i]
    growth = growth + (lane.where == 'open' and 1 or 0) - (lane.was == 'open' and 1 or 0)
  end
  return growth
end

--- The types of all keys that may be written, asked before the first write. Costs nothing if no lane was met.
local function check_lanes()
  if #lane_list > 0 or #holders_in > 0 or #holders_out > 0 then
    redis.call('ZCARD', waiting)
    redis.call('ZCARD', open)
    redis.call('ZCARD', blocked)
    redis.call('HLEN', lanes)
    redis.call('ZCARD', fair)
    check_scopes()
  end
end

--- Write everything that was decided about lanes and scopes.
local function write_lanes()
  local joining, leaving = {}, {}
  for member in pairs(waiting_in) do
    joining[#joining + 1], joining[#joining + 2] = 0, member
  end
  for member in pairs(waiting_out) do
    leaving[#leaving + 1] = member
  end
  local gone, places, shut, opening, unblocked, blocking = {}, {}, {}, {}, {}, {}
  for i = 1, #lane_list do
    local lane = lane_list[i]
    if lane.where ~= lane.was or lane.on ~= lane.was_on or lane.order ~= lane.was_order then
      if lane.was == 'blocked' then
        unblocked[#unblocked + 1] = lane.was_on .. '|' .. padded(lane.was_order) .. '|' .. lane.name
      elseif lane.was == 'open' and lane.where ~= 'open' then
        shut[#shut + 1] = lane.name
      end
      if lane.where == 'open' then
        opening[#opening + 1], opening[#opening + 2] = lane.order, lane.name
        places[#places + 1], places[#places + 2] = lane.name, 'open ' .. padded(lane.order)
      elseif lane.where == 'blocked' then
        blocking[#blocking + 1], blocking[#blocking + 2] = 0, lane.on .. '|' .. padded(lane.order) .. '|' .. lane.name
        places[#places + 1], places[#places + 2] = lane.name, 'blocked ' .. lane.on .. ' ' .. padded(lane.order)
      elseif lane.was then
        gone[#gone + 1] = lane.name
      end
    end
  end
  call_many('ZREM', waiting, leaving)
  call_many('ZADD', waiting, joining)
  call_many('ZREM', open, shut)
  call_many('ZADD', open, opening)
  call_many('ZREM', blocked, unblocked)
  call_many('ZADD', blocked, blocking)
  call_many('HDEL', lanes, gone)
  call_many('HSET', lanes, places)
  local times = {}
  for key in pairs(finished) do
    times[#times + 1], times[#times + 2] = string.format('%.0f', finishes[key]), key
  end
  call_many('ZADD', fair, times)
  write_scopes()
end
