--[[ select: selects the jobs of a claim: for each priority, the oldest first, from the plain list and from the open
lanes.

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

local moves                -- number of visits to lanes that gave no job, and of jobs that were moved or have expired
local capped_tasks         -- task's scope → whether the task has a cap; nil: no cap was read yet

local function reset()
  moves, capped_tasks = 0, nil
end

--- Return the lane into which a job of this task must be moved, because the task got a cap after the job was enqueued;
--- nil if the job stays.
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

--- Put a ready job into another lane. It keeps its place in line. There is no event, since the job's state does not
--- change.
local function move_job(job, name)
  -- The fast path may have taken jobs from that lane.
  rejoin()
  job.lane = name
  put(lane_of(name), count(job, 'seq'), job.id, job)
  rewrite(job)
  moves = moves + 1
end

--- Return the order of the first open lane, and whether this call has not met the lane yet; nil if no lane of this
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

--- Return the lowest order of anything but the lanes in Redis. `next_plain` is the order of the next plain job.
local function rival_of(priority, next_plain)
  local known = first_known()
  return padded(math.min(next_plain, known and known.order or math.huge, (priority + 1) * RANK))
end

--- Keep a lane open whose head has left without being claimed: in a fair queue the lane keeps its order.
local function keep_open(lane)
  if lane.where == 'open' and is_fair() then
    stand(lane)
  end
  moved_on(lane)
end

--- Return the job at the head of a lane, as arguments of `take`; nil if no job in this lane has the member.
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

--- Take the first job of an open lane. If it cannot be taken, move or remove the job, or block or reorder the lane.
local function serve(lane)
  local shape, fair_queue = lane.shape, is_fair()
  if fair_queue and base_of(lane.name) + finish_of(shape.key) > lane.order then
    -- Jobs of this key were taken from other lanes since this lane got its order.
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
    -- No job has the member.
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
  local costs = job and job.cost
  local refused_by = acquire_all(shape, now, costs)
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
  take(id, spec, limits_in_force(shape, costs), lane.name, head, seq, job)
  moved_on(lane)
end

--- Let the plain job that was found expire.
local function expire_plain()
  moves = moves + 1
  local id, _, _, _, job = pass_plain()
  expire_here(id, job)
end

--- Return whether the plain job that was found may be processed in this call. If it would be moved or would expire, it
--- is left to a later call once `sweep_max` such jobs were processed.
local function may_serve(priority)
  return moves <= sweep_max or not (next_job and is_over(next_job, now)) and
    (not facts.caps_by_task or not other_lane(next_task(), tostring(priority)))
end

--- Take the next plain job, move it into its lane, or let it expire.
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

--- Take the plain jobs of a priority, in a call in which there is no lane and no job can get one.
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

--- Select jobs in a queue without lanes. Returns the number of plain jobs that are left.
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

--- Select jobs. Returns the number of plain jobs that are left.
local function select_jobs()
  if not facts.caps_by_task and not first_known() and count_stored() == 0 then
    return select_plain()
  end
  local left = 0
  local served_before = nil   -- a lane that comes twice in a row is likely to come again
  for priority = 0, 3 do
    local has_plain = open_source(priority)
    while not is_full() do
      local kind = has_plain and peek_plain(limit - taken)
      local order, is_new = nil, nil
      if moves <= sweep_max then
        order, is_new = first_open(priority)
      end
      -- The older one comes first. In a fair queue, lanes' orders are no ages: plain jobs come first there, since they
      -- were enqueued before the queue was fair.
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
