--[[ choose: which jobs a claim takes: by priority; in each the oldest first, from the plain list and from the open lanes.

Keys: meta state jobs ready waiting lanes open blocked holders caps rates fair scheduled leases dead expiring wake slots
Meta: fair caps_by_task
Uses: sweep plain lanes state meta batch digits
]]

-- The jobs that are taken, side by side. One whose line is of the usual form has a head and a place in line; any
-- other has a record.
local chosen = 0
local chosen_ids, chosen_specs, chosen_limits, chosen_lanes = {}, {}, {}, {}
local chosen_heads, chosen_seqs, chosen_jobs = {}, {}, {}
local chosen_bytes = 0
local moves = 0            -- visits of lanes that gave no job, and jobs that were moved
local capped_tasks = {}

local function full()
  return chosen >= limit or chosen_bytes >= bytes_max
end

local function choose(id, spec, limits, lane, head, seq, job)
  spec = spec or redis.call('HGET', jobs, id) or ''
  chosen = chosen + 1
  chosen_ids[chosen], chosen_specs[chosen], chosen_limits[chosen], chosen_lanes[chosen] = id, spec, limits, lane
  chosen_heads[chosen], chosen_seqs[chosen], chosen_jobs[chosen] = head, seq, job
  chosen_bytes = chosen_bytes + #spec
  if job then
    job.chosen = true
  end
end

--- The lane that a job of this task has to be moved into, because the task got a cap after it was enqueued; nil if none.
local function other_lane(task, lane)
  task = 'task=' .. task
  if capped_tasks[task] == nil then
    capped_tasks[task] = redis.call('HEXISTS', caps, task) == 1
  end
  if not capped_tasks[task] or (lane .. '+'):find('+' .. task .. '+', 1, true) then
    return nil
  end
  return lane:sub(1, 1) .. '+' .. task .. lane:sub(2)
end

--- Put a ready job into another lane. It keeps its place in line, and there is no event: nothing happened to it.
local function move_job(job, name)
  job.lane = name
  put(lane_of(name), count(job, 'seq'), job.id, job)
  if not job.moved then
    job.moved = true
    back[#back + 1] = job
  end
  moves = moves + 1
end

-- The open lanes, in order: those of Redis that this call has not met, read in pages, and those that it has.
local page, page_at, page_offset, page_step = nil, 1, 0, 4
local stored_open = nil     -- the order of the lane at `page_at`, once it is known to be one that was not met

-- What was read ahead of the page's lanes, by their places in it, up to `ahead_upto`: their first members, and the lines
-- and specs of their heads.
local ahead_upto = 0
local ahead_members, ahead_lines, ahead_specs = {}, {}, {}
local head_member, head_line, head_spec = nil, nil, nil   -- those of the lane that was taken last

--- The order of the open lane that comes first; nil if none of this priority, or a higher one, is left.
local function first_open(priority)
  while not stored_open or known_lanes[page[page_at]] do
    stored_open = nil
    if page and page_at <= #page then
      if known_lanes[page[page_at]] then
        page_at = page_at + 2
      else
        stored_open = tonumber(page[page_at + 1])
      end
    elseif page_offset < 0 then
      break
    else
      page = redis.call('ZRANGE', open, digits(page_offset), digits(page_offset + page_step - 1), 'WITHSCORES')
      page_offset = #page == 2 * page_step and page_offset + page_step or -1
      page_step, page_at, ahead_upto = math.min(page_step * 2, 100), 1, 0
    end
  end
  local known = first_known()
  local order = known and known.order
  if stored_open and (not order or stored_open < order) then
    order = stored_open
  end
  return order and order < (priority + 1) * RANK and order or nil
end

--- Read the heads of the page's lanes from `page_at` on, as many as may be served: one command for all their lines.
local function look_ahead()
  local places, ids = {}, {}
  for at = page_at, #page, 2 do
    if #places >= limit - chosen then
      break
    end
    ahead_upto = at
    if not known_lanes[page[at]] then
      local shape = shape_of(page[at])
      local members = first_members(shape)
      places[#places + 1] = at
      ids[#ids + 1] = members[1] and members[1]:sub(shape.id_from) or ''
      ahead_members[at] = members
    end
  end
  local lines, specs = read_many(state, ids), read_many(jobs, ids)
  for i = 1, #places do
    ahead_lines[places[i]], ahead_specs[places[i]] = lines[i], specs[i]
  end
end

--- That lane.
local function take_open(order)
  if order ~= stored_open then
    return first_known()
  end
  if page_at > ahead_upto then
    look_ahead()
  end
  local lane, members = meet_lane(page[page_at], 'open', nil, page[page_at + 1], order), ahead_members[page_at]
  turn_page(lane, members, FIRST_STEP)
  head_member, head_line, head_spec = members[1], ahead_lines[page_at], ahead_specs[page_at]
  return lane
end

--- The line of a lane's first job, and its spec if it was read, too. Lines are read in steps that double, like those of
--- the plain lists.
local function line_of(lane, member)
  local members, at, lines = lane.members, lane.at, lane.lines
  if member == head_member then
    return head_line, head_spec
  elseif members[at] ~= member then
    return redis.call('HGET', state, id_of(lane, member))
  elseif not lines or lines.members ~= members or at > lines.upto then
    local step = lines and lines.step * 2 or at
    local ids = {}
    for i = at, math.min(at + math.min(step, limit - chosen) - 1, #members) do
      ids[#ids + 1] = id_of(lane, members[i])
    end
    lines = {
      members = members, from = at - 1, upto = at - 1 + #ids, step = step, lines = read_many(state, ids),
      specs = read_many(jobs, ids),
    }
    lane.lines = lines
  end
  return lines.lines[at - lines.from], lines.specs[at - lines.from]
end

--- In a fair queue a lane keeps its order when it loses its head for another reason than being served.
local function keep_open(lane)
  if lane.where == 'open' and is_fair() then
    stand(lane)
  end
  moved_on(lane)
end

--- The job at the head of a lane: its line's parts, as `choose` wants them; nil if the member leads nowhere.
local function head_of(lane, member)
  local job = lane.jobs and lane.jobs[member]
  if job then
    return nil, nil, nil, job
  end
  local line, spec = line_of(lane, member)
  if not line then
    return nil
  end
  -- What is to be found in the line of a job that was never claimed is known, so a plain search is enough.
  local shape = lane.shape
  local seq = member:match('^0*(%d+)', shape.seq_from)
  local at = line:find(shape.in_line .. seq .. ' since=', 1, true)
  if at and line:find('ready task=', 1, true) == 1 then
    return line:sub(7, at + 5 + #lane.name), seq, spec, nil
  end
  job = read_line(line)
  if job.state ~= 'ready' or job.lane ~= lane.name then
    return nil
  end
  job.id = id_of(lane, member)
  return nil, nil, spec, job
end

--- Take the first job of an open lane, or let the lane move on.
local function serve(lane)
  local shape, fair_queue = lane.shape, is_fair()
  if fair_queue and shape.rank * RANK + finish_of(shape.key) > lane.order then
    -- Jobs of this key were served from other lanes since it was put here.
    moves = moves + 1
    reorder(lane, shape.rank * RANK + finish_of(shape.key))
    moved_on(lane)
    return
  end
  local member = peek(lane)
  local head, seq, spec, job
  if member then
    head, seq, spec, job = head_of(lane, member)
  end
  if not head and not job then
    -- It leads nowhere.
    moves = moves + 1
    if member then
      remove(lane, member)
    else
      lane.where = nil
    end
    keep_open(lane)
    return
  end
  if facts.caps_by_task and not shape.of_task then
    local elsewhere = other_lane(job and job.task or head:match('^task=(%S+)'), lane.name)
    if elsewhere then
      job = job or read_line(redis.call('HGET', state, id_of(lane, member)))
      job.id = id_of(lane, member)
      remove(lane, member)
      move_job(job, elsewhere)
      keep_open(lane)
      return
    end
  end
  local wanted = scopes_of(lane)
  local refused_by = acquire_all(wanted, now)
  if refused_by then
    moves = moves + 1
    block(lane, refused_by)
    moved_on(lane, refused_by)
    return
  end
  local id = job and job.id or id_of(lane, member)
  hold(wanted, id)
  lane.limits = lane.limits or limits_in_force(wanted)
  remove(lane, member)
  if fair_queue then
    serve_fairly(lane)
  end
  choose(id, spec, lane.limits, lane.name, head, seq, job)
  moved_on(lane)
end

--- Take more jobs of the lane that was just served, as long as they come before all else and nothing about them is unusual:
--- then each costs little more than a plain one. `next_plain` is the order of the plain job that comes next. What is
--- left is not touched, and served as usual.
local function serve_on(lane, next_plain)
  local shape, objects, limits = lane.shape, lane.objects, lane.limits
  if lane.where ~= 'open' or is_fair() or lane.added or left_early or may_be_blocked()
      or facts.caps_by_task and not shape.of_task then
    return
  end
  first_open(shape.rank)
  local rival = math.min(next_plain, stored_open or math.huge, open_lanes[1] or math.huge,
    front and front ~= lane and front.where == 'open' and front.order or math.huge)
  local name, in_line, seq_from, id_from = lane.name, shape.in_line, shape.seq_from, shape.id_from
  local base, head_length = shape.rank * RANK, 5 + #lane.name
  local members, at = lane.members, lane.at
  local first = at
  while members[at] and not full() do
    local member = members[at]
    local seq = member:match('^0*(%d+)', seq_from)
    if base + seq >= rival then
      break
    end
    local line, spec = line_of(lane, member)
    local found = line and line:find(in_line .. seq .. ' since=', 1, true)
    if not found or line:find('ready task=', 1, true) ~= 1 or acquire_all(objects, now) then
      break
    end
    local id = member:sub(id_from)
    hold(objects, id)
    choose(id, spec, limits, name, line:sub(7, found + head_length), seq, nil)
    at = at + 1
    lane.at = at
  end
  if at > first then
    leaving_runs[#leaving_runs + 1], leaving_runs[#leaving_runs + 2] = members[first], members[at - 1]
    remove(lane, nil)
  end
end

--- Take the plain job that comes next, or move it into its lane.
local function serve_plain()
  local id, spec, head, seq, job = plain_id, plain_spec, plain_head, plain_seq, plain_job
  local line = list_lines and list_lines[list_at]
  pass_plain()
  local elsewhere = facts.caps_by_task and
    other_lane(job and job.task or head:match('^task=(%S+)'), tostring(source_priority))
  if not elsewhere then
    choose(id, spec, '', '', head, seq, job)
    return
  end
  if not job then
    job = read_line(line)
    job.id = id
  end
  move_job(job, elsewhere)
end

--- Choose, and return how many plain jobs stay behind.
local function choose_jobs()
  local left = 0
  local served_before = nil   -- a lane that comes twice in a row may come more often
  for priority = 0, 3 do
    open_source(priority)
    while not full() do
      local kind = peek_plain(limit - chosen)
      local order = moves <= sweep_max and first_open(priority)
      -- In a fair queue, plain jobs are those from before it was fair.
      if order and (not kind or not is_fair() and order - priority * RANK < (tonumber(plain_seq) or 0)) then
        local lane = take_open(order)
        serve(lane)
        if lane ~= served_before then
          served_before = lane
        else
          serve_on(lane, kind and priority * RANK + plain_seq or math.huge)
        end
      elseif kind and (moves <= sweep_max or not facts.caps_by_task or
          not other_lane(plain_job and plain_job.task or plain_head:match('^task=(%S+)'), tostring(priority))) then
        serve_plain()
      else
        break
      end
    end
    left = left + close_source()
  end
  return left
end
