--[[ pages: the open lanes that Redis has, in order, read in pages that double, with their first members; and the lines and
specs of their heads, with one command for many.

A lane's order is that of its head, so it need not be asked for; but not in a fair queue. In a queue that was fair a little
while ago, lanes still stand by virtual time until they are served once.

Keys: state jobs waiting open lanes blocked caps holders rates fair scheduled expiring leases
Uses: lanes chosen batch digits place
]]

local PAGE_MAX = 100
local FIRST_PLACE = ('0'):rep(15)

-- Side by side: names, orders as text, the first members, and whose the first one is.
local page, page_orders, page_members, page_ids = {}, {}, {}, {}
local page_at, page_read = 1, 0       -- the lane that comes next; the last one whose members were read
local page_offset, page_step = 0, 4   -- where the next page begins, below 0 if there is none; and its size
local ahead_from, ahead_upto = 0, 0   -- the lanes whose heads were read: behind this one, up to that one
local ahead_lines, ahead_specs = nil, nil
local head_member, head_line, head_spec = nil, nil, nil   -- of the lane that `meet_stored` met last

local function turn_over()
  local last = page_offset + page_step - 1
  page, page_orders, page_members, page_ids = {}, {}, {}, {}
  if is_fair() then
    local found = redis.call('ZRANGE', open, digits(page_offset), digits(last), 'WITHSCORES')
    for i = 1, #found, 2 do
      local order = found[i + 1]
      page[#page + 1], page_orders[#page + 1] = found[i], padded(order:match('^%d+$') or tonumber(order))
    end
  else
    page = redis.call('ZRANGE', open, digits(page_offset), digits(last))
  end
  page_offset = #page == page_step and last + 1 or -1
  page_step = math.min(page_step * 2, PAGE_MAX)
  page_at, page_read, ahead_upto = 1, 0, 0
end

--- Read the first members of the lanes from `page_at` on, of as many as may be served.
local function read_members()
  local takes_orders = not is_fair()
  page_read = math.min(#page, page_at + limit - chosen - 1)
  for at = page_at, page_read do
    local name = page[at]
    if not known_lanes[name] then
      local members = first_members(name)
      local head = members[1]
      page_members[at], page_ids[at] = members, head and id_of(name, head)
      if takes_orders then
        page_orders[at] = head and order_at(name, head) or name:sub(1, 1) .. FIRST_PLACE
      end
    end
  end
end

--- The order of the lane at `page_at`, after passing over those that this call has met; nil if there is none.
local function stored_order()
  while page_at > #page or known_lanes[page[page_at]] do
    if page_at <= #page then
      page_at = page_at + 1
    elseif page_offset >= 0 then
      turn_over()
    else
      return nil
    end
  end
  if page_at > page_read then
    read_members()
  end
  return page_orders[page_at]
end

--- The line and the spec of the head of the lane at `page_at`.
local function head_ahead()
  if page_at > ahead_upto then
    local ids = {}
    for at = page_at, page_read do
      ids[#ids + 1] = page_ids[at] or ''
    end
    ahead_from, ahead_upto = page_at - 1, page_read
    ahead_lines, ahead_specs = read_many(state, ids), read_many(jobs, ids)
  end
  local at = page_at - ahead_from
  return ahead_lines[at], ahead_specs[at]
end

--- The lane at `page_at` becomes one like others.
local function meet_stored(order)
  local members = page_members[page_at]
  head_member, head_line, head_spec = members[1], head_ahead()
  local lane = meet_lane(page[page_at], 'open', nil, page_orders[page_at], order)
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
    for i = at, math.min(at + math.min(step, limit - chosen) - 1, #members) do
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
