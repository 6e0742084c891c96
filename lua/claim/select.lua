--[[ select: which jobs a claim takes: by priority; in each the oldest first, from the plain list and from the open lanes.

Keys: state caps
Meta: caps_by_task
Args: limit sweep_max
Uses: meta(facts) call(now) state(read_line count) stored_lines(waiting_line) place(padded)
    scopes(acquire_all hold_all limits_in_force) lane_names(base_of is_of_task id_of)
    lane_states(lane_of stand reorder first_known) lane_opening(block_on moved_on) lane_members(put peek remove)
    lane_fair(is_fair finish_of serve_fairly) sweep(rewrite) deadline(is_over) expiry(expire_here)
    claimed_jobs(take is_full taken)
    plain_jobs(open_source peek_plain pass_plain take_run close_source next_task next_seq next_head next_job)
    open_lanes(count_stored stored_order meet_stored line_of) fresh_lines(fresh_head)
    fast_path(take_fast rejoin noted_first)
]]

local moves                -- visits of lanes that gave no job, and jobs that were moved or have expired
local capped_tasks         -- task's scope → whether the task has a cap, as far as it was read; nil: not asked yet

local function reset()
  moves, capped_tasks = 0, nil
end

--- The lane that a job of this task has to be moved into, because the task got a cap after it was enqueued; nil if none.
local function other_lane(task, lane)
  task = 'task=' .. task
  capped_tasks = capped_tasks or {}
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
  -- That lane may be one that the fast path has served.
  rejoin()
  job.lane = name
  put(lane_of(name), count(job, 'seq'), job.id, job)
  rewrite(job)
  moves = moves + 1
end

--- The order of the open lane that comes first, and whether it is one that this call has not met; nil if none of this
--- priority, or a higher one, is left.
local function first_open(priority)
  local stored, known = stored_order(), first_known()
  if noted_first and (not stored or noted_first < stored) and (not known or tonumber(noted_first) < known.order) then
    rejoin()
    known = first_known()
  end
  local order = stored and tonumber(stored)
  local is_new = order ~= nil and (not known or order < known.order)
  order = is_new and order or known and known.order
  if order and order < (priority + 1) * RANK then
    return order, is_new
  end
  return nil
end

--- The first order of anything but Redis' lanes; `next_plain` is that of the plain job that comes next.
local function rival_of(priority, next_plain)
  local known = first_known()
  return padded(math.min(next_plain, known and known.order or math.huge, (priority + 1) * RANK))
end

--- In a fair queue a lane keeps its order when it loses its head for another reason than being served.
local function keep_open(lane)
  if lane.where == 'open' and is_fair() then
    stand(lane)
  end
  moved_on(lane)
end

--- The job at the head of a lane: its line's parts, as `take` wants them; nil if the member leads nowhere.
local function head_of(lane, member)
  local job = lane.jobs and lane.jobs[member]
  if job then
    return nil, nil, nil, job
  end
  local line, spec = line_of(lane, member)
  if not line then
    return nil
  end
  local head, seq = fresh_head(lane.name, line)
  if head then
    return head, seq, spec, nil
  end
  job = read_line(line)
  if job.state ~= 'ready' or job.lane ~= lane.name then
    return nil
  end
  job.id = id_of(lane.name, member)
  return nil, nil, spec, job
end

--- Take the first job of an open lane, or let the lane move on.
local function serve(lane)
  local shape, fair_queue = lane.shape, is_fair()
  if fair_queue and base_of(lane.name) + finish_of(shape.key) > lane.order then
    -- Jobs of this key were served from other lanes since it was put here.
    moves = moves + 1
    reorder(lane, base_of(lane.name) + finish_of(shape.key))
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
  if job and job.expires and is_over(job, now) then
    moves = moves + 1
    remove(lane, member)
    expire_here(job.id, job)
    keep_open(lane)
    return
  end
  if facts.caps_by_task and not is_of_task(lane.name) then
    local elsewhere = other_lane(job and job.task or head:match('^task=(%S+)'), lane.name)
    if elsewhere then
      job = job or read_line(redis.call('HGET', state, id_of(lane.name, member)))
      job.id = id_of(lane.name, member)
      remove(lane, member)
      move_job(job, elsewhere)
      keep_open(lane)
      return
    end
  end
  local refused_by = acquire_all(shape, now)
  if refused_by then
    moves = moves + 1
    block_on(lane, refused_by)
    moved_on(lane, refused_by)
    return
  end
  local id = job and job.id or id_of(lane.name, member)
  hold_all(shape, id)
  remove(lane, member)
  if fair_queue then
    serve_fairly(lane)
  end
  take(id, spec, limits_in_force(shape), lane.name, head, seq, job)
  moved_on(lane)
end

--- The plain job that was found expires.
local function expire_plain()
  moves = moves + 1
  local id, _, _, _, job = pass_plain()
  expire_here(id, job)
end

--- Whether the plain job that was found may be served in this call: whatever gives no job is left to the next one at some point.
local function may_serve(priority)
  return moves <= sweep_max or not (next_job and is_over(next_job, now)) and
    (not facts.caps_by_task or not other_lane(next_task(), tostring(priority)))
end

--- Take the plain job that comes next, or move it into its lane.
local function serve_plain(priority)
  if next_job and next_job.expires and is_over(next_job, now) then
    expire_plain()
    return
  end
  local elsewhere = facts.caps_by_task and other_lane(next_task(), tostring(priority))
  local id, spec, head, seq, job, line = pass_plain()
  if not elsewhere then
    take(id, spec, '', '', head, seq, job)
    return
  end
  if not job then
    job = read_line(line or waiting_line(spec))
    job.id = id
  end
  move_job(job, elsewhere)
end

--- Take plain jobs of a priority where there is no lane and no job can get one.
local function take_plain()
  while not is_full() and peek_plain(limit - taken) do
    if next_head then
      take_run()
    elseif next_job.expires and is_over(next_job, now) then
      if moves > sweep_max then
        break
      end
      expire_plain()
    else
      local id, spec, head, seq, job = pass_plain()
      take(id, spec, '', '', head, seq, job)
    end
  end
end

--- Take jobs where there are no lanes, and return how many stay behind.
local function select_plain()
  local left = 0
  for priority = 0, 3 do
    if open_source(priority) then
      take_plain()
      left = left + close_source()
    end
  end
  return left
end

--- Take jobs, and return how many plain ones stay behind.
local function select_jobs()
  if not facts.caps_by_task and not first_known() and count_stored() == 0 then
    return select_plain()
  end
  local left = 0
  local served_before = nil   -- a lane that comes twice in a row may come more often
  for priority = 0, 3 do
    local has_plain = open_source(priority)
    while not is_full() do
      local kind = has_plain and peek_plain(limit - taken)
      local order, is_new = nil, nil
      if moves <= sweep_max then
        order, is_new = first_open(priority)
      end
      -- By age. In a fair queue, orders are no ages: plain jobs come first there, since they are from before it was fair.
      if order and (not kind or not is_fair() and order - priority * RANK < (tonumber(next_seq) or 0)) then
        local next_plain = kind and priority * RANK + (tonumber(next_seq) or 0) or math.huge
        local last = is_new and not is_fair() and take_fast(nil, rival_of(priority, next_plain))
        if not last then
          local lane = is_new and meet_stored(order) or first_known()
          serve(lane)
          last = lane.name
          if last == served_before then
            take_fast(lane, next_plain)
          end
        end
        served_before = last
      elseif kind and may_serve(priority) then
        serve_plain(priority)
      else
        break
      end
    end
    if has_plain then
      left = left + close_source()
    end
  end
  return left
end
