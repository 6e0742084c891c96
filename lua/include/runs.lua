--[[ runs: jobs that are taken one after the other without looking around: from lanes of Redis, each once, or many from
one lane, as long as they come before all else. Then each costs little more than a plain one.

Whatever is unusual about a job, or about one of its scopes, ends a run; it is not touched, and served as usual.

Keys: state jobs waiting open lanes blocked caps holders rates fair scheduled expiring leases
Meta: caps_by_task
Uses: lanes pages chosen place
]]

--- What a job's line says in this lane, if it is of the usual form, that of a job which was never claimed: its beginning up
--- to its place in line, without the state, and that place.
local function fresh_head(name, line)
  local head, lane, seq = (line or ''):match('^ready (task=.- lane=(%S+)) seq=(%d+) since=')
  if lane == name then
    return head, seq
  end
  return nil
end

--- Take the heads of the page's lanes before the order `rival`. Returns the name of the last lane, nil if there is none.
local function serve_page(rival)
  local last = nil
  while not full() do
    local order = stored_order()
    if not order or order >= rival then
      break
    end
    local name, members = page[page_at], page_members[page_at]
    local shape = LANE_SHAPES.known[name] or shape_of(name)
    local line, spec = head_ahead()
    local head, seq = fresh_head(name, line)
    if not head or facts.caps_by_task and not is_of_task(name) or acquire_all(shape, now) then
      break
    end
    local id = page_ids[page_at]
    hold_all(shape, id)
    choose(id, spec, limits_in_force(shape), name, head, seq, nil)
    local behind = members[2] and order_at(name, members[2])
    visit(name, members, behind)
    last = name
    page_at = page_at + 1
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

--- Take more jobs of a lane that was just served. `next_plain` is the order of the plain job that comes next.
local function serve_on(lane, next_plain)
  local shape = lane.shape
  if lane.where ~= 'open' or is_fair() or lane.added or left_early or may_be_blocked()
      or facts.caps_by_task and not is_of_task(lane.name) then
    return
  end
  local stored = stored_order()
  local rival = math.min(next_plain, stored and tonumber(stored) or math.huge, first_other(lane))
  local base, limits = base_of(lane.name), nil
  local members, at = lane.members, lane.at
  local first = at
  while members[at] and not full() do
    local member = members[at]
    local line, spec = line_of(lane, member)
    local head, seq = fresh_head(lane.name, line)
    if not head or base + seq >= rival or acquire_all(shape, now) then
      break
    end
    local id = id_of(lane.name, member)
    hold_all(shape, id)
    limits = limits or limits_in_force(shape)
    choose(id, spec, limits, lane.name, head, seq, nil)
    at = at + 1
    lane.at = at
  end
  if at > first then
    leaving_runs[#leaving_runs + 1], leaving_runs[#leaving_runs + 2] = members[first], members[at - 1]
    remove(lane, nil)
  end
end
