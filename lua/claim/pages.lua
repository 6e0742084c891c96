--[[ pages: the open lanes that Redis has, in order, read in pages that double, with their first members; and the lines and
specs of their heads, with one command for many.

A lane's order is that of its head, so it need not be asked for; but not in a fair queue. In a queue that was fair a little
while ago, lanes still stand by virtual time until they are served once.

Keys: state jobs open
Args: limit
Kept: NO_PAGE NO_AHEAD
Uses: batch(read_many) digits(digits) place(padded) lane_names(order_at id_of) lane_standing(known_lanes meet_lane)
    lane_members(first_members turn_page FIRST_STEP) lane_fair(is_fair) taken(taken)
]]

local PAGE_MAX = 100
local FIRST_PLACE = ('0'):rep(15)

local page         -- lanes side by side, see `turn_over`; `at` comes next, `upto` is the last whose members were read
local next_page    -- where the next page begins, below 0 if there is none
local page_step    -- and its size
local ahead        -- lines and specs of the heads of the lanes behind `from` up to `upto`
local head_member, head_line, head_spec   -- of the lane that `meet_stored` met last

local NO_PAGE = {names = {}, at = 1, upto = 0}
local NO_AHEAD = {upto = 0}

local function reset()
  page, next_page, page_step, ahead = NO_PAGE, 0, 4, NO_AHEAD
  head_member, head_line, head_spec = nil, nil, nil
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
  -- Orders as text; the first members, and the id of the first one.
  page = {names = names, orders = orders, members = {}, heads = {}, at = 1, upto = 0}
  next_page = #names == page_step and last + 1 or -1
  page_step = math.min(page_step * 2, PAGE_MAX)
  ahead = NO_AHEAD
end

--- Read the first members of the lanes from the next one on, of as many as may be served.
local function read_members()
  local takes_orders = not is_fair()
  local names, orders, from = page.names, page.orders, page.at
  page.upto = math.min(#names, from + limit - taken - 1)
  for at = from, page.upto do
    local name = names[at]
    if not known_lanes[name] then
      local members = first_members(name)
      local head = members[1]
      page.members[at], page.heads[at] = members, head and id_of(name, head)
      if takes_orders then
        orders[at] = head and order_at(name, head) or name:sub(1, 1) .. FIRST_PLACE
      end
    end
  end
end

--- The order of the lane that comes next, after passing over those that this call has met; nil if there is none.
local function stored_order()
  local names, at = page.names, page.at
  while at > #names or known_lanes[names[at]] do
    if at <= #names then
      at = at + 1
      page.at = at
    elseif next_page >= 0 then
      turn_over()
      names, at = page.names, page.at
    else
      return nil
    end
  end
  if at > page.upto then
    read_members()
  end
  return page.orders[at]
end

--- The line and the spec of the head of the lane that comes next.
local function head_ahead()
  local at = page.at
  if at > ahead.upto then
    local ids = {}
    for i = at, page.upto do
      ids[#ids + 1] = page.heads[i] or ''
    end
    ahead = {from = at - 1, upto = page.upto, lines = read_many(state, ids), specs = read_many(jobs, ids)}
  end
  at = at - ahead.from
  return ahead.lines[at], ahead.specs[at]
end

--- The lane that comes next, as `stored_order` has found it: its name, first members, and the id of the first one.
local function stored_lane()
  local at = page.at
  return page.names[at], page.members[at], page.heads[at]
end

--- It was served; go on behind it.
local function pass_stored()
  page.at = page.at + 1
end

--- It becomes a lane like others.
local function meet_stored(order)
  local at = page.at
  local members = page.members[at]
  head_member, head_line, head_spec = members[1], head_ahead()
  local lane = meet_lane(page.names[at], 'open', nil, page.orders[at], order)
  turn_page(lane, members, FIRST_STEP)
  return lane
end

--- The line of a lane's first job, and its spec if it was read, too. Lines are read in steps that double, like those of
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
