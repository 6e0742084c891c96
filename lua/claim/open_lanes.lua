--[[ open_lanes: reads the open lanes in Redis, in order, in pages that double in size, with their first members; and
the lines and specs of the heads of many lanes with one command.

A lane's order is that of its head, so it is not read from `open`, except in a fair queue. In a queue that was fair
until a little while ago, a lane keeps a virtual time as its order in `open` until a job is taken from it.

Keys: state jobs open
Args: limit
Kept: NO_PAGE NO_AHEAD
Uses: batch(read_many) digits(digits) place(padded PLACE_WIDTH) lane_names(order_at id_of)
    lane_states(is_met meet_lane) lane_members(first_members turn_page FIRST_STEP) lane_fair(is_fair)
    claimed_jobs(taken) plain_queue(is_plain_queue)
]]

local PAGE_MAX = 100
local FIRST_PLACE = ('0'):rep(PLACE_WIDTH - 1)   -- the lowest order of a priority, after the digit of the priority

local stored_open  -- how many lanes are open in Redis; nil: not asked yet
local page         -- successive lanes, see `turn_over`
local page_at      -- index of the next lane
local page_upto    -- index of the last lane whose members were read
local next_page    -- index in `open` at which the next page begins; below 0: there is no further page
local page_step    -- the size of the next page
local ahead        -- lines and specs of the heads of the lanes after `from`, up to `upto`
local head_member, head_line, head_spec   -- of the lane that `meet_stored` met last

local NO_PAGE = {names = {}}
local NO_AHEAD = {upto = 0}

local function reset()
  stored_open = nil
  page, page_at, page_upto, next_page, page_step, ahead = NO_PAGE, 1, 0, 0, 4, NO_AHEAD
  head_member, head_line, head_spec = nil, nil, nil
end

--- Return the number of lanes that are open in Redis.
local function count_stored()
  if not stored_open then
    stored_open = is_plain_queue() and 0 or redis.call('ZCARD', open)
  end
  return stored_open
end

local function turn_over()
  local last = next_page + page_step - 1
  local names, orders = {}, {}
  if is_fair() then
    local found = redis.call('ZRANGE', open, digits(next_page), digits(last), 'WITHSCORES')
    for i = 1, #found, 2 do
      local order = found[i + 1]
      names[#names + 1], orders[#orders + 1] = found[i], padded(order:match('^%d+$') or tonumber(order))
    end
  else
    names = redis.call('ZRANGE', open, digits(next_page), digits(last))
  end
  -- `orders` are text; `members` are first members; `heads` are the ids of the first of them.
  page = {names = names, orders = orders, members = {}, heads = {}}
  page_at, page_upto = 1, 0
  next_page = #names == page_step and last + 1 or -1
  page_step = math.min(page_step * 2, PAGE_MAX)
  ahead = NO_AHEAD
end

--- Read the first members of the next lanes: as many lanes as the claim may take jobs from.
local function read_members()
  local takes_orders = not is_fair()
  local names, orders = page.names, page.orders
  page_upto = math.min(#names, page_at + limit - taken - 1)
  for at = page_at, page_upto do
    local name = names[at]
    if not is_met(name) then
      local members = first_members(name)
      local head = members[1]
      page.members[at], page.heads[at] = members, head and id_of(name, head)
      if takes_orders then
        orders[at] = head and order_at(name, head) or name:sub(1, 1) .. FIRST_PLACE
      end
    end
  end
end

--- Return the order of the next lane; nil without one. Lanes that this call has met are skipped.
local function stored_order()
  local names = page.names
  while page_at > #names or is_met(names[page_at]) do
    if page_at <= #names then
      page_at = page_at + 1
    elseif next_page >= 0 then
      turn_over()
      names = page.names
    else
      return nil
    end
  end
  if page_at > page_upto then
    read_members()
  end
  return page.orders[page_at]
end

--- Return the facts of the lane that `stored_order` has found: the line and the spec of its head, its name, its first
--- members, and the id of the first one.
local function stored_lane()
  local at = page_at
  if at > ahead.upto then
    local ids = {}
    for i = at, page_upto do
      ids[#ids + 1] = page.heads[i] or ''
    end
    ahead = {from = at - 1, upto = page_upto, lines = read_many(state, ids), specs = read_many(jobs, ids)}
  end
  local from = ahead.from
  return ahead.lines[at - from], ahead.specs[at - from], page.names[at], page.members[at], page.heads[at]
end

--- Go on to the lane after this one.
local function pass_stored()
  page_at = page_at + 1
end

--- Add the next lane to the lanes that the call has met.
local function meet_stored(order)
  local line, spec, name, members = stored_lane()
  head_member, head_line, head_spec = members[1], line, spec
  local lane = meet_lane(name, 'open', nil, page.orders[page_at], order)
  turn_page(lane, members, FIRST_STEP)
  return lane
end

--- Return the line of a lane's first job, and its spec if it was read, too. Lines are read in steps that double, as for
--- the plain lists.
local function line_of(lane, member)
  local members, at, lines = lane.members, lane.at, lane.lines
  if member == head_member then
    return head_line, head_spec
  elseif members[at] ~= member then
    return redis.call('HGET', state, id_of(lane.name, member))
  elseif not lines or lines.members ~= members or at > lines.upto then
    local step = lines and lines.step * 2 or at
    local ids = {}
    for i = at, math.min(at + math.min(step, limit - taken) - 1, #members) do
      ids[#ids + 1] = id_of(lane.name, members[i])
    end
    lines = {
      members = members, from = at - 1, upto = at - 1 + #ids, step = step, lines = read_many(state, ids),
      specs = read_many(jobs, ids),
    }
    lane.lines = lines
  end
  return lines.lines[at - lines.from], lines.specs[at - lines.from]
end
