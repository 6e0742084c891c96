--[[ fast_path: takes ordinary jobs one after the other without the general code: the heads of successive lanes, or
successive jobs of one lane. Each then costs little more than a plain job. It stops at the first job that is not next in
order, or that has anything special; it does not touch such a job, and leaves it to the general code.

The entry is `take_fast`. A lane whose head was taken here is not in lane_states until `rejoin`, which the general code
calls before that lane could come first again. The exit is `leave_fast`, when all jobs are taken.

Without this file, claims would take the same jobs and write the same bytes at a higher cost: a test shows this.

Meta: caps_by_task
Uses: lane_names(LANE_SHAPES shape_of base_of order_at id_of is_of_task) scopes(acquire_all hold_all limits_in_force)
    lane_states(meet_lane stand first_known first_other) lane_opening(may_be_blocked look_behind)
    lane_members(leave_all remove turn_page has_gaps FIRST_STEP) lane_fair(is_fair) lane_write(write_also leave_run)
    open_lanes(stored_order stored_lane pass_stored line_of) claimed_jobs(take is_full)
    fresh_lines(fresh_head place_behind) call(now) meta(facts) place(padded)
]]

local noted = {}      -- lanes whose heads were taken, as name, first members, name, first members, …
local heads = {}      -- these heads
local noted_first     -- the lowest order among these lanes now, as text, or nil
-- What the call writes about these lanes: orders and names; names and places; names of lanes that are empty now.
local opening, places, shut = {}, {}, {}

local function reset()
  if #noted > 0 then
    noted, heads, noted_first = {}, {}, nil
    opening, places, shut = {}, {}, {}
  end
end

--- Note that the head of an open lane in Redis was taken. `behind` is the lane's order now; nil if it is empty.
local function note_fast(name, members, behind)
  local to = #heads
  noted[2 * to + 1], noted[2 * to + 2], heads[to + 1] = name, members, members[1]
  if not behind then
    shut[#shut + 1] = name
    return
  end
  local at = #opening
  opening[at + 1], opening[at + 2] = behind, name
  places[at + 1], places[at + 2] = name, 'open ' .. behind
  if not noted_first or behind < noted_first then
    noted_first = behind
  end
end

--- Add the noted lanes to lane_states, since one of them comes first again.
local function rejoin()
  if #noted == 0 then
    return
  end
  local lanes_noted = noted
  leave_all(heads)
  noted, heads, noted_first = {}, {}, nil
  opening, places, shut = {}, {}, {}
  for i = 1, #lanes_noted, 2 do
    local name, members = lanes_noted[i], lanes_noted[i + 1]
    local lane = meet_lane(name, 'open', nil, order_at(name, members[1]))
    turn_page(lane, members, FIRST_STEP)
    lane.at = 2
    if members[2] then
      local behind = order_at(name, members[2])
      lane.order, lane.order_text = tonumber(behind), behind
      stand(lane)
    else
      lane.where = nil
    end
  end
end

--- Take the heads of lanes in Redis whose order is before `rival`. Returns the name of the last lane, or nil.
local function take_heads(rival)
  if noted_first and noted_first < rival then
    rival = noted_first
  end
  local last, is_last = nil, is_full()
  while not is_last do
    local order = stored_order()
    if not order or order >= rival then
      break
    end
    local line, spec, name, members, id = stored_lane()
    local shape = LANE_SHAPES.known[name] or shape_of(name)
    local head, seq = fresh_head(name, line)
    if not head or facts.caps_by_task and not is_of_task(name) or acquire_all(shape, now) then
      break
    end
    hold_all(shape, id)
    is_last = take(id, spec, limits_in_force(shape), name, head, seq, nil)
    local behind = members[2] and order_at(name, members[2])
    note_fast(name, members, behind)
    last = name
    pass_stored()
    if behind and behind < rival then
      rival = behind
    end
    if may_be_blocked() then
      look_behind(shape, behind and tonumber(behind), nil)
      local known = first_known()
      local text = known and padded(known.order)
      if text and text < rival then
        rival = text
      end
    end
  end
  return last
end

--- Take more jobs of a lane from which the general code has just taken one. `next_plain` is the order of the next plain
--- job.
local function take_more(lane, next_plain)
  local shape = lane.shape
  if lane.where ~= 'open' or is_fair() or lane.added or has_gaps() or may_be_blocked()
      or facts.caps_by_task and not is_of_task(lane.name) then
    return
  end
  local stored = stored_order()
  local rival = math.min(next_plain, stored and tonumber(stored) or math.huge,
    noted_first and tonumber(noted_first) or math.huge, first_other(lane))
  local base, limits = base_of(lane.name), nil
  local members, at = lane.members, lane.at
  local first = at
  local head, beginning = nil, nil   -- of the previous job
  while members[at] and not is_full() do
    local member = members[at]
    local line, spec = line_of(lane, member)
    local seq = head and place_behind(beginning, line)
    if not seq then
      head, seq = fresh_head(lane.name, line)
      beginning = head and 'ready ' .. head .. ' seq='
    end
    if not head or base + seq >= rival or acquire_all(shape, now) then
      break
    end
    local id = id_of(lane.name, member)
    hold_all(shape, id)
    limits = limits or limits_in_force(shape)
    take(id, spec, limits, lane.name, head, seq, nil)
    at = at + 1
    lane.at = at
  end
  if at > first then
    leave_run(members[first], members[at - 1])
    remove(lane, nil)
  end
end

--- The entry: take jobs in order as long as they are ordinary. With `lane`, from which a job was just taken, take jobs
--- of that lane whose order is before the next plain job; otherwise take the heads of lanes in Redis whose order is
--- before `rival`. Returns the name of the last lane.
local function take_fast(lane, rival)
  if lane then
    take_more(lane, rival)
    return lane.name
  end
  return take_heads(rival)
end

--- The exit: let the noted lanes be written with the other lanes.
local function leave_fast()
  if #noted > 0 then
    leave_all(heads)
    write_also(opening, places, shut)
  end
end
